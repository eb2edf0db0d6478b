"""sglang's tree over runs of tokens against one over strings, as the original has it."""

from dataclasses import dataclass, field

import numpy as np
from asking import request
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvsim.cluster.policies.text_tree import TextTree, runs_of
from kvsim.tokens import token_at

CHARS = 3  # characters that stand for a token here


@dataclass(eq=False)
class Part:
    text: str
    parent: "Part | None" = None
    tenants: dict[int, int] = field(default_factory=dict)
    children: dict[str, "Part"] = field(default_factory=dict)
    last_tenant: int | None = None


class StringTree:
    """The rules of tree.rs in the plainest form, over real text."""

    def __init__(self, num_tenants: int) -> None:
        self.root, self.epoch = Part(""), 0
        self.sizes = dict.fromkeys(range(num_tenants), 0)
        for tenant in range(num_tenants):
            self.insert("", tenant)

    def tick(self) -> int:
        self.epoch += 1
        return self.epoch - 1

    def insert(self, text: str, tenant: int) -> None:
        node = self.root
        node.tenants.setdefault(tenant, 0)
        while text:
            child = node.children.get(text[0])
            if child is None:
                child = Part(text, node, {tenant: self.tick()}, last_tenant=tenant)
                node.children[text[0]] = child
                self.sizes[tenant] += len(text)
                return
            shared = common(text, child.text)
            if shared < len(child.text):
                front = Part(child.text[:shared], node, dict(child.tenants), last_tenant=child.last_tenant)
                node.children[text[0]] = front
                child.text, child.parent = child.text[shared:], front
                front.children[child.text[0]] = child
                child = front
            if tenant not in child.tenants:
                child.tenants[tenant] = 0
                self.sizes[tenant] += len(child.text)
            node, text = child, text[shared:]
        node.tenants[tenant] = self.tick()

    def match(self, text: str) -> tuple[int, int]:
        node, matched = self.root, 0
        while matched < len(text) and (child := node.children.get(text[matched])):
            shared = common(text[matched:], child.text)
            matched, node = matched + shared, child
            if shared < len(child.text):
                break
        if node.last_tenant not in node.tenants:
            node.last_tenant = next(iter(node.tenants))
        if (epoch := self.tick()) % 8 == 0:
            node.tenants[node.last_tenant] = epoch
        return matched, node.last_tenant

    def parts(self) -> list[Part]:
        nodes = [self.root]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes

    def evict(self, max_size: int) -> None:
        for tenant in self.sizes:
            while self.sizes[tenant] > max_size:
                leaves = [
                    node
                    for node in self.parts()
                    if tenant in node.tenants and not any(tenant in c.tenants for c in node.children.values())
                ]
                oldest = min(leaf.tenants[tenant] for leaf in leaves)
                leaf, *others = [leaf for leaf in leaves if leaf.tenants[tenant] == oldest]
                assume(not others)  # the original does not say which of them goes first
                self.sizes[tenant] -= len(leaf.text)
                del leaf.tenants[tenant]
                if not leaf.children and not leaf.tenants and leaf.parent:
                    del leaf.parent.children[leaf.text[0]]


def common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# The placeholder stream 0 is one token over and over; pieces of other streams may follow on.
PIECES = st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 8))
PROMPTS = st.lists(PIECES, min_size=0, max_size=4)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), PROMPTS, st.integers(0, 3)),
        st.tuples(st.just("match"), PROMPTS, st.just(0)),
    ),
    max_size=40,
)


def text_of(prompt) -> str:
    tokens = [("image", 0) if s == 0 else (s, first + i) for s, first, n in prompt for i in range(n)]
    numbers = [0 if stream == "image" else 20 * stream + i for stream, i in tokens]
    return "".join(chr(40 + CHARS * number + c) for number in numbers for c in range(CHARS))


@given(ACTIONS)
def test_matches_and_sizes_are_those_of_a_tree_of_strings(actions):
    tree, model = TextTree(4), StringTree(4)
    for kind, prompt, tenant in actions:
        runs = runs_of(request(*prompt).prompt)
        if kind == "insert":
            tree.insert(runs, tenant)
            model.insert(text_of(prompt), tenant)
        else:
            matched, holder = tree.prefix_match(runs)
            assert (matched * CHARS, holder) == model.match(text_of(prompt))
    assert {t: size * CHARS for t, size in enumerate(tree.sizes)} == model.sizes


@settings(max_examples=150)
@given(ACTIONS, st.integers(0, 60))
def test_eviction_leaves_what_a_tree_of_strings_keeps(actions, max_tokens):
    tree, model = TextTree(4), StringTree(4)
    for kind, prompt, tenant in actions:
        if kind == "insert":
            tree.insert(runs_of(request(*prompt).prompt), tenant)
            model.insert(text_of(prompt), tenant)
    tree.evict(max_tokens)
    model.evict(max_tokens * CHARS)
    assert all(size <= max_tokens for size in tree.sizes)
    assert {t: size * CHARS for t, size in enumerate(tree.sizes)} == model.sizes
    for _, prompt, _ in actions:
        matched, holder = tree.prefix_match(runs_of(request(*prompt).prompt))
        assert (matched * CHARS, holder) == model.match(text_of(prompt))


def test_who_made_a_node_keeps_it_as_long_as_he_is_there():
    tree = TextTree(3)
    prompt = runs_of(request((1, 0, 100)).prompt)
    tree.insert(prompt, 2)
    tree.insert(prompt, 0)
    assert tree.prefix_match(prompt) == (100, 2)
    tree.insert(runs_of(request((2, 0, 100)).prompt), 2)
    tree.evict(100)  # target 2 holds 200, the older leaf goes
    assert tree.prefix_match(prompt) == (100, 0)
    assert tree.sizes == [100, 0, 100]


def test_a_very_long_prompt_costs_as_much_as_its_segments():
    tree = TextTree(2)
    million = runs_of(request((1, 0, 1_000_000)).prompt)
    tree.insert(million, 0)
    assert tree.prefix_match(runs_of(request((1, 0, 999_999), (2, 0, 5)).prompt)) == (999_999, 0)


def test_equal_tokens_of_different_streams_are_equal_text():
    first = int(token_at(np.uint64(1), np.uint64(0)))
    twin = next(s for s in range(2, 10**6) if int(token_at(np.uint64(s), np.uint64(0))) == first)
    tree = TextTree(2)
    tree.insert(runs_of(request((1, 0, 10)).prompt), 1)
    assert tree.prefix_match(runs_of(request((twin, 0, 10)).prompt)) == (1, 1)
