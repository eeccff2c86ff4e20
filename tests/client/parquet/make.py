"""Makes the Parquet files beside it, and of those that are taken the JSON Lines that they are to become. By pyarrow, which
tools/setup unpacks; encrypted.parquet and footer.parquet have new keys each time.

usage: make.py
"""

import base64
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "third_party/wheels/arrow"))
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import pyarrow.parquet.encryption as pe  # noqa: E402

TURNS = [{"role": "user", "content": "2 + 2?", "weight": None}, {"role": "assistant", "content": "4 \u2713", "weight": 1}]
PLAIN = [{"prompt": f"{i} + {i} =", "completion": f" {2 * i}"} for i in range(7)]
CODED = ["zero", "one", "two", "three", "four"]  # in three bits, where 5 to 7 mean none
# Each value stands beside its type, null comes on top of each.
KINDS = {
    "text": (pa.string(), ["", "quote\" back\\ \n\t\b\f\r\x00\x1f\x7f", "it\u2019s \U0001f600 \u2028"]),
    "large": (pa.large_string(), ["a", "b", "c"]),
    "view": (pa.string_view(), ["a longer one than twelve bytes", "b", "c"]),
    "coded": (pa.dictionary(pa.int32(), pa.string()), ["x", "y", "x"]),
    "json": (pa.json_(), ["{\"a\": 1}", "[]", "1"]),
    "whole": (pa.int64(), [-2**63, 2**63 - 1, 0]),
    "unsigned": (pa.uint64(), [2**64 - 1, 0, 1]),
    "int32": (pa.int32(), [-2**31, 2**31 - 1, 0]),
    "uint32": (pa.uint32(), [2**32 - 1, 0, 1]),
    "int16": (pa.int16(), [-2**15, 2**15 - 1, 0]),
    "uint16": (pa.uint16(), [2**16 - 1, 0, 1]),
    "byte": (pa.int8(), [-128, 127, 0]),
    "octet": (pa.uint8(), [255, 0, 1]),
    "yes": (pa.bool_(), [True, False, True]),
    "none": (pa.null(), [None, None, None]),
    "real": (pa.float64(), [0.1, -0.0, 1e16]),
    "reals": (pa.list_(pa.float64()), [[1e15, 123456789012345680.0, 1e-4, 1e-5], [5e-324, 1.7976931348623157e308, -2.5e-07], [100.0, 1 / 3]]),
    "single": (pa.float32(), [0.5, 0.10000000149011612, 16777216.0]),
    "half": (pa.float16(), [0.5, -2.0, 65504.0]),
    "tokens": (pa.list_(pa.int32()), [[1, 2, 3], [], [None, 4]]),
    "wide": (pa.large_list(pa.string()), [["a"], [None], []]),
    "pair": (pa.list_(pa.int16(), 2), [[1, 2], [3, None], [5, 6]]),
    "looked": (pa.list_view(pa.int8()), [[1], [2, 3], []]),
    "messages": (pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64())])), [TURNS, [], [None, TURNS[0]]]),
    "deep \u00e9\"": (pa.struct([("a", pa.struct([("b \u00e9", pa.list_(pa.list_(pa.bool_())))])), ("c", pa.float64())]),
                      [{"a": {"b \u00e9": [[True], []]}, "c": 1.0}, {"a": None, "c": None}, {"a": {"b \u00e9": None}, "c": 2.5}]),
}


def without_none(value):
    """As the Python package has it: keys without a value are left out."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def write(name, table, rows=None, **how):
    pq.write_table(table, HERE / f"{name}.parquet", **how)
    if rows is not None:
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(without_none(row)) + "\n" for row in rows))


def column(name, values, kind):
    return pa.table({"prompt": pa.array(["a"] * len(values)), name: pa.array(values, kind)})


class Keys(pe.KmsClient):
    def __init__(self, _):
        pe.KmsClient.__init__(self)

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


def write_encrypted(name, table, **how):
    factory = pe.CryptoFactory(Keys)
    config = pe.EncryptionConfiguration(footer_key="f", column_keys={"k": table.column_names}, **how)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(HERE / f"{name}.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def main():
    plain = pa.Table.from_pylist(PLAIN)
    for packing in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
        write(f"plain_{packing}", plain, compression=packing)
    write("plain", plain, PLAIN, row_group_size=2, use_dictionary=False, data_page_version="2.0", write_page_checksum=True,
          compression="none", write_statistics=False)
    kinds = pa.table({name: pa.array([*values, None], kind) for name, (kind, values) in KINDS.items()})
    write("kinds", kinds, [{name: ([*values, None])[i] for name, (_, values) in KINDS.items()} for i in range(4)], compression="none")

    for name, values, kind in (("at", [0], pa.timestamp("us")), ("day", [0], pa.date32()), ("took", [0], pa.duration("s")),
                               ("price", [1], pa.decimal128(5, 2)), ("raw", [b"x"], pa.binary()), ("fixed", [b"xx"], pa.binary(2)),
                               ("map", [[("a", 1)]], pa.map_(pa.string(), pa.int64())), ("uuid", [b"0" * 16], pa.uuid()),
                               ("within", [[{"at": 0}]], pa.list_(pa.struct([("at", pa.time64("us"))]))),
                               ("nan", [1.0, float("nan")], pa.float64()), ("infinite", [1.0, float("inf")], pa.float64())):
        write(name, column(name, values, kind))
    write("latin", pa.table({"prompt": pa.array([b"a", b"\xff"]).view(pa.string())}))
    write("fields", pa.table({"pair": [{"named": 1}]}), store_schema=False, compression="none")  # without Arrow's copy of the names
    write("norow", plain.slice(0, 0))
    write("nocolumn", pa.table({}))
    write("twice", pa.Table.from_arrays([plain["prompt"], plain["prompt"]], names=["prompt", "prompt"]))
    write("lacking", pa.table({"prompt": ["a", None], "completion": ["b", "c"]}))
    write("coded", pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 4] * 20, pa.int32()), CODED)}), compression="none",
          write_statistics=False)
    write_encrypted("encrypted", plain)
    write_encrypted("footer", plain, plaintext_footer=True)
    # Small files of much: 8 MiB of indices into one value, and one row that is longer than a row may be.
    write("many", pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 1000])}), compression="zstd")
    write("long", pa.table({"text": pa.array([["x" * (1 << 20)] * 20])}), compression="zstd")
    write("control", pa.table({"text": ["\x01" * (40 << 20)]}), compression="zstd", use_dictionary=False, write_statistics=False)
    write("controls", pa.table({"text": [["\x01" * (1 << 20)] * 40]}), compression="zstd", write_statistics=False)
    write("huge", pa.table({"text": pa.array([["x" * (16 << 20)] * 64])}), compression="zstd")


if __name__ == "__main__":
    main()
