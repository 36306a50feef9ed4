"""Files of tensors: what is mapped and how it is used, what is refused."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import convert
from kerastf.convert import tensors
from kerastf.errors import FileFormatError

SIZES = {"vocab_size": 40, "max_length": 12, "dim": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


def write_raw(path, header, data=b"", length=None):
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(body) if length is None else length).to_bytes(8, "little") + body + data)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
WRONG = {
    "no header": (b"", b"", 0), "cut": (b"{", b"", 100), "huge": (b"{}", b"", 2**62), "not JSON": (b"{x}", b"", None),
    "a list": (b"[1]", b"", None), "not UTF-8": (b"\xff\xfe{}", b"", None), "deep": (b"[" * 10**5, b"", None),
    "twice": (b'{"a": 1, "a": 2}', b"", None), "no place": ({"a": {"dtype": "F32", "shape": [2]}}, b"", None),
    "type": ({"a": {**GOOD, "dtype": "F8"}}, bytes(8), None), "type is a list": ({"a": {**GOOD, "dtype": []}}, bytes(8), None),
    "negative": ({"a": {**GOOD, "shape": [-2]}}, bytes(8), None), "true": ({"a": {**GOOD, "shape": [True, 2]}}, bytes(8), None),
    "many axes": ({"a": {**GOOD, "shape": [1] * 99 + [2]}}, bytes(8), None), "float": ({"a": {**GOOD, "shape": [2.0]}}, bytes(8), None),
    "vast": ({"a": {**GOOD, "shape": [2**40, 2**40], "data_offsets": [0, 2**82]}}, bytes(8), None),
    "backwards": ({"a": {**GOOD, "data_offsets": [8, 0]}}, bytes(8), None),
    "other size": ({"a": {**GOOD, "shape": [3]}}, bytes(8), None), "beyond the end": ({"a": GOOD}, bytes(7), None),
    "overlap": ({"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}}, bytes(12), None),
    "a gap": ({"a": {**GOOD, "data_offsets": [4, 12]}}, bytes(12), None), "a tail": ({"a": GOOD}, bytes(9), None),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_malformed_files(case, tmp_path):
    write_raw(tmp_path / "model.safetensors", *WRONG[case])
    with pytest.raises(FileFormatError) as caught:
        tensors.open_folder(tmp_path)
    header = WRONG[case][0]
    if isinstance(header, dict):
        assert any(repr(name) in str(caught.value) for name in header) or case == "a tail"
    assert "model.safetensors" in str(caught.value)


def test_names_of_shards_cannot_leave_the_folder(tmp_path):
    write_raw(tmp_path / "outside.safetensors", {"a": GOOD}, bytes(8))
    inside = tmp_path / "folder"
    inside.mkdir()
    for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "..\\outside.safetensors", "config.json", "",
                 "a\0.safetensors"):  # fmt: skip
        (inside / tensors.INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(FileFormatError, match="refused"):
            tensors.open_folder(inside)


@pytest.mark.parametrize("index, part", [
    ([], "must hold a JSON object"), ({}, "weight_map"), ({"weight_map": {}}, "weight_map"), ({"weight_map": {"a": 1}}, "weight_map"),
    ({"weight_map": {"a": "no.safetensors"}}, "cannot be read"), ({"weight_map": {"b": "one.safetensors"}}, "'a'"),
    ({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}, "'b'"),
])  # fmt: skip
def test_an_index_that_lies(tmp_path, index, part):
    write_raw(tmp_path / "one.safetensors", {"a": GOOD}, bytes(8))
    (tmp_path / tensors.INDEX).write_text(json.dumps(index))
    with pytest.raises(FileFormatError) as caught:
        tensors.open_folder(tmp_path)
    assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F64"])
def test_types_of_numbers(kind, tmp_path):
    values = np.array([0.0, 1.0, -2.5, 0.15625, 3e4], "float32")
    if kind == "BF16":
        data = (values.view("uint32") >> 16).astype("uint16").tobytes()
    else:
        data = values.astype(tensors.TYPES[kind]).tobytes()
    header = {"a": {"dtype": kind, "shape": [5], "data_offsets": [0, len(data)]}}
    write_raw(tmp_path / "model.safetensors", header, data)
    found = tensors.open_folder(tmp_path).read("a")
    np.testing.assert_allclose(found, values, rtol=2**-7)
    assert found.dtype == (np.float64 if kind == "F64" else np.float32)


def one_tensor(folder, kind="F32", count=2**20, shift=0):
    """A file of one tensor that begins `shift` bytes after a multiple of 64; its values."""
    values = np.arange(count, dtype="float32") % 1000
    data = values.astype(tensors.TYPES[kind]).tobytes()
    header = json.dumps({"a": {"dtype": kind, "shape": [count], "data_offsets": [0, len(data)]}}).encode()
    write_raw(folder / "model.safetensors", header + b" " * ((shift - 8 - len(header)) % 64), data)
    return values


def test_tensors_stay_in_the_memory_of_their_file(tmp_path):
    values = one_tensor(tmp_path)
    have = tensors.open_folder(tmp_path)
    found = have.own(["a"], have.read("a"))
    assert np.shares_memory(found, have.read("a"))
    found[0] = 7.0  # as training would
    assert have.read("a")[0] == 7.0
    np.testing.assert_array_equal(tensors.open_folder(tmp_path).read("a"), values)  # the file is as it was


def test_no_two_weights_share_their_memory(tmp_path):
    values = one_tensor(tmp_path)
    have = tensors.open_folder(tmp_path)
    first, second = (have.own(["a"], have.read("a")) for _ in range(2))
    first[:] = 0.0
    np.testing.assert_array_equal(second, values)


def test_no_two_threads_are_given_the_same_memory(tmp_path):
    values = one_tensor(tmp_path)
    have = tensors.open_folder(tmp_path)

    class Slow(set):
        def isdisjoint(self, names):
            found = super().isdisjoint(names)
            time.sleep(0.02)  # time for another thread to ask the same
            return found

    have.taken = Slow()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: have.own(["a"], have.read("a")), range(4)))
    for array in found:
        np.testing.assert_array_equal(array, values)
        array[:] = 0.0
    assert len(have.maps) == 1


@pytest.mark.parametrize("kind, shift", [("F32", 8), ("F32", 32), ("F16", 0)])
def test_tensors_at_other_places_are_copied_and_their_pages_given_back(tmp_path, kind, shift):
    values = one_tensor(tmp_path, kind, shift=shift)
    have = tensors.open_folder(tmp_path)
    read = have.read("a")
    found = have.own(["a"], read)
    assert found.__array_interface__["data"][0] % 64 == 0
    np.testing.assert_array_equal(found, values)
    if sys.platform == "linux":
        assert resident(tmp_path) < 2**15
    np.testing.assert_array_equal(have.read("a"), values)  # they come again when they are asked for
    if sys.platform == "linux":
        assert resident(tmp_path) > 2**20


def resident(folder):
    """How many bytes of a mapped file are in this process's memory."""
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    at = [i for i, line in enumerate(lines) if line.endswith(str(folder / "model.safetensors"))]
    return sum(int(next(n for n in lines[i:] if n.startswith("Rss:")).split()[1]) for i in at) * 1024


@pytest.mark.parametrize("left, part", [
    (None, "cannot be read: No such file or directory."), (0, "is cut off: nothing is left of it."),
    (100, "is cut off: tensor 'a' is not whole."),
])  # fmt: skip
def test_a_file_that_shrinks_after_its_header_was_read(tmp_path, left, part):
    one_tensor(tmp_path)
    have = tensors.open_folder(tmp_path)
    if left is None:
        (tmp_path / "model.safetensors").unlink()
    else:
        os.truncate(tmp_path / "model.safetensors", left)
    with pytest.raises(FileFormatError) as caught:
        have.read("a")
    assert str(caught.value).endswith(f"model.safetensors {part}")


def test_a_model_lives_on_when_its_file_is_replaced_and_leaves_it_alone(tmp_path):
    convert.save(kerastf.create_model("gpt", **SIZES), tmp_path)
    path = tmp_path / "model.safetensors"
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 64 == 0  # so what is written can be used in place
    before, tokens = path.read_bytes(), np.ones((2, 5), "int32")
    model = kerastf.create_model("gpt", weights=tmp_path)
    logits = ops.convert_to_numpy(model(tokens))
    convert.save(kerastf.create_model("gpt", **SIZES), tmp_path)
    assert path.read_bytes() != before
    np.testing.assert_array_equal(model(tokens), logits)
    model = kerastf.create_model("gpt", weights=tmp_path)
    written = path.read_bytes()
    model.compile("sgd")
    model.fit(tokens, tokens, epochs=2, verbose=0)
    assert path.read_bytes() == written
    assert float(ops.max(ops.abs(model(tokens) - kerastf.create_model("gpt", weights=tmp_path)(tokens)))) > 1e-3
