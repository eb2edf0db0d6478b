"""Tables are known by their columns; a bad one is refused in one line that says what is wrong."""

import numpy as np
import pandas as pd
import pytest
from made_tables import attention, collectives, gemm, written

from kvsim.calibrate.rows import operations
from kvsim.calibrate.tables import fingerprint, left_out, read_table
from kvsim.calibrate.units import checked_operations
from kvsim.errors import KvsimError


@pytest.mark.parametrize(
    ("make", "form"), [(attention, "attention"), (gemm, "gemm"), (collectives, "collectives")]
)
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_recognised_by_their_columns(tmp_path, make, form, suffix):
    table = read_table(written(make().head(50), tmp_path / f"any_name{suffix}"))
    assert table.form.name == form
    assert len(table.us) == 50


def test_a_quarter_is_left_out_whatever_the_order_and_the_file(tmp_path):
    frame = gemm()
    one = read_table(written(frame, tmp_path / "a.parquet"))
    other = read_table(written(frame.sample(frac=1, random_state=1), tmp_path / "b.csv"))
    assert left_out(one.digest).mean() == pytest.approx(0.25, abs=0.05)
    assert set(one.digest[left_out(one.digest)]) == set(other.digest[left_out(other.digest)])
    assert fingerprint(one.digest) == fingerprint(other.digest)


def test_the_rule_is_the_documented_one(tmp_path):
    """CRC-32 of the form's name and the keys, joined by bars."""
    import zlib

    frame = pd.DataFrame(
        {
            "gpu": ["L40S"],
            "kernel": ["k"],
            "dtype": ["fp8"],
            "m": [1],
            "n": [2],
            "k": [3],
            "latency_us": [9.0],
        }
    )
    (digest,) = read_table(written(frame, tmp_path / "t.csv")).digest
    assert digest == zlib.crc32(b"gemm|L40S|k|fp8|1|2|3")


def broken(change):
    frame = gemm().head(40)
    frame["latency_us"] = frame["latency_us"].astype(float)
    return change(frame)


def set_cell(column, value):
    def change(frame):
        frame[column] = frame[column].astype(object)
        frame.loc[frame.index[3], column] = value
        return frame

    return change


BAD = {
    "t.csv: looks like a table of gemm, but column k is missing": lambda f: f.drop(columns="k"),
    "t.csv: looks like a table of gemm, but the time is in latency_ms; give it as latency_us": lambda f: (
        f.rename(columns={"latency_us": "latency_ms"})
    ),
    "t.csv: row 4: latency_us is -2, must be above 0": set_cell("latency_us", -2.0),
    "t.csv: row 4: latency_us is nan, not a number": set_cell("latency_us", np.nan),
    "t.csv: row 4: m is 'many', not a number": set_cell("m", "many"),
    "t.csv: has no rows": lambda f: f.head(0),
    "t.csv: columns a are of no known form of table (docs/cost.md)": lambda f: pd.DataFrame({"a": [1]}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_tables(tmp_path, message):
    path = written(broken(BAD[message]), tmp_path / "t.csv")
    with pytest.raises(KvsimError) as error:
        read_table(path)
    assert str(error.value) == f"{tmp_path}/{message}"


def test_files_that_are_none(tmp_path):
    with pytest.raises(KvsimError, match=r"nothing.csv: no such file"):
        read_table(tmp_path / "nothing.csv")
    (tmp_path / "t.parquet").write_text("no parquet")
    with pytest.raises(KvsimError, match=r"t.parquet: cannot be read as a table: "):
        read_table(tmp_path / "t.parquet")
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(KvsimError, match=r"a table of kernel times is a .parquet or .csv file"):
        read_table(tmp_path / "t.txt")


def test_times_in_another_unit_than_the_column_says(tmp_path):
    frame = gemm()
    frame["latency_us"] /= 1e6
    table = read_table(written(frame, tmp_path / "t.parquet"))
    with pytest.raises(
        KvsimError, match=r"latency_us: times of H100 SXM are [\d,]+ times shorter .* in microseconds$"
    ):
        checked_operations([table])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("gpu", "H1000", r"t.csv: gpu: 'H1000' is not in the catalog"),
        ("dtype", "int3", r"t.csv: dtype 'int3' is not modelled; one of bfloat16, float16, fp8"),
    ],
)
def test_unknown_names(tmp_path, column, value, message):
    frame = gemm().head(20).assign(**{column: value})
    with pytest.raises(KvsimError, match=message):
        operations([read_table(written(frame, tmp_path / "t.csv"))])


def test_a_context_shorter_than_its_new_tokens(tmp_path):
    frame = attention().head(5).assign(kv_len=3)
    with pytest.raises(KvsimError, match=r"row 1: kv_len is less than q_len"):
        operations([read_table(written(frame, tmp_path / "t.csv"))])


def test_names_say_how_a_card_is_mounted(tmp_path):
    for name, gpu in (
        ("A100-SXM-80GB", "A100-80GB SXM"),
        ("h100_sxm", "H100 SXM"),
        ("B200-SXM", "B200"),
        ("RTXPRO6000", "RTX PRO 6000"),
        ("A100", "A100-80GB SXM"),
    ):
        frame = gemm().head(3).assign(gpu=name)
        rows = operations([read_table(written(frame, tmp_path / "t.csv"))])
        assert set(rows["gemm"].gpu) == {gpu}


def test_one_new_token_each_is_a_decode_step(tmp_path):
    rows = operations([read_table(written(attention(), tmp_path / "t.parquet"))])["attention"]
    assert set(rows[rows.many == 0].new) == {1}
    assert (rows[rows.many > 0].new > 1).all()
    assert rows.hot.all()


def test_flushed_tables_say_so(tmp_path):
    frame = attention().head(30).assign(l2="flushed")
    rows = operations([read_table(written(frame, tmp_path / "t.csv"))])["attention"]
    assert not rows.hot.any()


def test_layers_of_a_profile_become_products_and_small_kernels(tmp_path):
    layers = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "layernorm", "act_fn")
    frame = pd.DataFrame(
        [("RTX4090", "meta-llama/Llama-3.1-8B", 2, layer, 64, 50.0) for layer in layers],
        columns=["gpu", "model", "tp", "layer", "tokens", "time_us"],
    )
    rows = operations([read_table(written(frame, tmp_path / "t.csv"))])
    shapes = rows["gemm"].set_index("kernel")[["n", "k"]]
    assert tuple(shapes.loc["qkv_proj"]) == (3072, 4096)
    assert tuple(shapes.loc["o_proj"]) == (4096, 2048)
    assert tuple(shapes.loc["gate_up_proj"]) == (14336, 4096)
    assert tuple(shapes.loc["down_proj"]) == (4096, 7168)
    small = rows["small"].set_index("kernel").bytes
    assert small["layernorm"] == 64 * 8 * 4096
    assert small["act_fn"] == 64 * 6 * 7168
