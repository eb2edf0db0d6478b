"""Which targets were sent which text: sglang's radix tree, shared by all targets ("tenants").

Nobody builds the text: a fixed number of characters stands for each token, no character stands for two
tokens, so texts part where token ids do. A node holds its part of a prompt as runs (stream, first, length)
of `kvsim.tokens`; a prompt of any length costs as many comparisons as it has segments and nodes on its path.
Source: sgl-project/sglang `sgl-model-gateway/src/policies/tree.rs` (sglang-router 0.3.2), with its rules of
what is stamped when; where it takes any tenant, the one that came first is taken.
"""

from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import count

import numpy as np

from kvsim.tokens import PLACEHOLDER_STREAM, Segments, token_at

Run = tuple[int, int, int]  # (stream, first token, number of tokens)


class Node:
    """A part of some prompts. tenants: the stamp of each that was sent it, in their order of coming."""

    __slots__ = ("children", "last_tenant", "length", "parent", "runs", "tenants")

    def __init__(self, runs: list[Run], parent: "Node | None", tenants: dict[int, int]) -> None:
        self.runs = runs
        self.length = sum(length for _, _, length in runs)  # tokens
        self.parent = parent
        self.tenants = tenants
        self.children: dict[int, Node] = {}  # by their first token
        self.last_tenant: int | None = None


class TextTree:
    """The tree of one model.

    num_tenants: targets. sizes[t]: tokens that tenant t is believed to hold.
    """

    def __init__(self, num_tenants: int) -> None:
        self.root = Node([], None, {})
        self.sizes = [0] * num_tenants
        self._epochs = count()
        for tenant in range(num_tenants):  # sglang inserts an empty text for each worker that registers
            self.insert([], tenant)

    def prefix_match(self, prompt: list[Run]) -> tuple[int, int]:
        """Tokens of the longest known head of a prompt, and the tenant who holds it."""
        node, k, skip, matched = self.root, 0, 0, 0
        while k < len(prompt):
            child = node.children.get(_token(prompt[k], skip))
            if child is None:
                break
            shared, k, skip = _shared(child.runs, prompt, k, skip)
            matched += shared
            node = child
            if shared < child.length:
                break
        return matched, self._visit(node)

    def _visit(self, node: Node) -> int:
        """The tenant of a node: who made it, as long as it is there. One visit in eight is stamped."""
        if node.last_tenant not in node.tenants:
            node.last_tenant = next(iter(node.tenants))
        epoch = next(self._epochs)
        if epoch % 8 == 0:
            node.tenants[node.last_tenant] = epoch
        return node.last_tenant

    def insert(self, prompt: list[Run], tenant: int) -> None:
        """Note that a tenant was sent a prompt."""
        node, k, skip = self.root, 0, 0
        node.tenants.setdefault(tenant, 0)
        while k < len(prompt):
            first = _token(prompt[k], skip)
            child = node.children.get(first)
            if child is None:
                leaf = Node(_from(prompt, k, skip), node, {tenant: next(self._epochs)})
                leaf.last_tenant = tenant
                node.children[first] = leaf
                self.sizes[tenant] += leaf.length
                return
            shared, k, skip = _shared(child.runs, prompt, k, skip)
            node = child if shared == child.length else _split(child, first, shared)
            if tenant not in node.tenants:
                node.tenants[tenant] = 0
                self.sizes[tenant] += node.length
        node.tenants[tenant] = next(self._epochs)

    def evict(self, max_size: int) -> None:
        """Take the oldest leaves from each tenant that holds more than `max_size` tokens."""
        too_large = {tenant for tenant, size in enumerate(self.sizes) if size > max_size}
        if not too_large:
            return
        number = count()  # equal stamps: in the order of the walk
        num_below, nodes = self._children_of(too_large)
        heap = [
            (node.tenants[tenant], next(number), tenant, node)
            for node in nodes
            for tenant in node.tenants
            if tenant in too_large and not num_below.get((node, tenant))
        ]
        heapify(heap)
        while heap:
            _, _, tenant, node = heappop(heap)
            parent = node.parent
            if self.sizes[tenant] <= max_size or parent is None:
                continue
            self.sizes[tenant] -= node.length
            del node.tenants[tenant]
            if not node.children and not node.tenants:
                del parent.children[_token(node.runs[0], 0)]
            num_below[parent, tenant] -= 1
            if not num_below[parent, tenant]:
                heappush(heap, (parent.tenants[tenant], next(number), tenant, parent))

    def _children_of(self, tenants: set[int]) -> tuple[dict[tuple[Node, int], int], list[Node]]:
        """How many children of a node a tenant holds, where it holds any; and all nodes."""
        num_below: dict[tuple[Node, int], int] = {}
        nodes = [self.root]
        for node in nodes:
            nodes.extend(node.children.values())
            for tenant in node.tenants:
                if tenant in tenants and node.parent is not None:
                    key = node.parent, tenant
                    num_below[key] = num_below.get(key, 0) + 1
        return num_below, nodes


def runs_of(prompt: Segments) -> list[Run]:
    """A prompt for the tree."""
    return [(stream, first, length) for stream, first, length in prompt.tolist()]


def _token(run: Run, skip: int) -> int:
    return _token_at(run[0], run[1] + skip)


@lru_cache(maxsize=1 << 12)  # the same few are asked for to match a prompt and to insert it
def _token_at(stream: int, index: int) -> int:
    return int(token_at(np.uint64(stream), np.uint64(index)))


def _shared(runs: list[Run], prompt: list[Run], k: int, skip: int) -> tuple[int, int, int]:
    """Tokens of `runs` that a prompt repeats from token `skip` of its run `k` on; where it then stands."""
    shared = 0
    for stream, first, length in runs:
        done = 0
        while done < length and k < len(prompt):
            other, other_first, other_length = prompt[k]
            n = min(length - done, other_length - skip)
            if stream != other or (first + done != other_first + skip and stream != PLACEHOLDER_STREAM):
                n = _equal_tokens((stream, first + done, n), (other, other_first + skip, n))
            if n == 0:
                return shared + done, k, skip
            done += n
            skip += n
            if skip == other_length:
                k, skip = k + 1, 0
        shared += done
        if done < length:
            break
    return shared, k, skip


def _equal_tokens(a: Run, b: Run) -> int:
    n = 0
    while n < a[2] and _token(a, n) == _token(b, n):
        n += 1
    return n


def _from(prompt: list[Run], k: int, skip: int) -> list[Run]:
    stream, first, length = prompt[k]
    return [(stream, first + skip, length - skip), *prompt[k + 1 :]]


def _split(node: Node, first: int, length: int) -> Node:
    """Cut a node behind `length` tokens; the new node in front of it, which takes over its tenants."""
    head, tail, left = [], [], length
    for stream, start, n in node.runs:
        taken = min(left, n)
        if taken:
            head.append((stream, start, taken))
        if taken < n:
            tail.append((stream, start + taken, n - taken))
        left -= taken
    assert node.parent is not None
    front = Node(head, node.parent, dict(node.tenants))
    front.last_tenant = node.last_tenant
    node.parent.children[first] = front
    node.runs, node.length, node.parent = tail, node.length - length, front
    front.children[_token(tail[0], 0)] = node
    return front
