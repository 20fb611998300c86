"""The repositories' files: random, the same on every machine, made once and kept.

Shards are whole safetensors files, for a client may look inside. Nothing here is timed.
"""

import hashlib
import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from .profiles import MIB, FileSpec, Profile

INDEX = "model.safetensors.index.json"
FORMAT = 1


class NoSpace(Exception):
    """A disk is too small for a profile."""


@dataclass(frozen=True)
class Entry:
    """A file as the hub lists it. `oid` is the git blob id (of the pointer, for an LFS file)."""

    path: str
    size: int
    oid: str
    sha256: str
    lfs: bool
    pointer_size: int = 0

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass(frozen=True)
class Repository:
    """What the server serves: `folder` holds the files under their own names."""

    name: str
    commit: str
    folder: Path
    entries: list[Entry]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def lfs(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.lfs]

    def warm(self) -> None:
        """Reads everything once, so that the server sends from the page cache."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda entry: _drain(self.folder / entry.path), self.entries))


def git_oid(size: int) -> "hashlib._Hash":
    """A hasher of a git blob of this size."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def prepare(profile: Profile, scale: float, cache: Path, say) -> Repository:
    """The profile's repository, made now unless it is there."""
    name = profile.content if scale == 1 else f"{profile.content}-x{scale:g}"
    root = cache / "content" / name
    specs = profile.files(scale)
    wanted = [asdict(spec) for spec in specs]
    known = root / "known.json"
    entries = _known(known, wanted, root / "files")
    if entries is None:
        size = sum(spec.size for spec in specs)
        require_space(cache, size)
        say(f"making the files of {name} ({size / 1e9:.2f} GB), once")
        shutil.rmtree(root, ignore_errors=True)
        entries = _make(root / "files", name, specs)
        text = json.dumps({"format": FORMAT, "specs": wanted, "entries": [asdict(entry) for entry in entries]})
        known.write_text(text)
    commit = hashlib.sha1("\n".join(f"{e.path} {e.etag}" for e in entries).encode(), usedforsecurity=False).hexdigest()
    return Repository(name, commit, root / "files", entries)


def require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + 256 * MIB:
        raise NoSpace(f"{size / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free on its disk")


def _known(known: Path, wanted: list, files: Path) -> list[Entry] | None:
    try:
        found = json.loads(known.read_text())
        if found["format"] != FORMAT or found["specs"] != wanted:
            return None
        entries = [Entry(**entry) for entry in found["entries"]]
        whole = all((files / entry.path).stat().st_size == entry.size for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entries if whole else None


def _make(files: Path, seed: str, specs: list[FileSpec]) -> list[Entry]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = list(pool.map(lambda spec: _make_file(files, seed, spec), specs))
    shards = [spec.path for spec in specs if spec.lfs]
    if shards:
        total = sum(spec.size for spec in specs if spec.lfs)
        weights = {tensor_name(path): path for path in shards}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=2).encode()
        path = files / INDEX
        path.write_bytes(text)
        oid = git_oid(len(text))
        oid.update(text)
        entries.append(Entry(INDEX, len(text), oid.hexdigest(), hashlib.sha256(text).hexdigest(), False))
    return sorted(entries, key=lambda entry: entry.path)


def tensor_name(path: str) -> str:
    return path.removesuffix(".safetensors") + ".weight"


def _make_file(files: Path, seed: str, spec: FileSpec) -> Entry:
    path = files / spec.path
    path.parent.mkdir(parents=True, exist_ok=True)
    source = random.Random(f"{seed}/{spec.path}")
    sha256, oid, left = hashlib.sha256(), git_oid(spec.size), spec.size
    with open(path, "wb", buffering=0) as file:
        head = _head(spec)
        while head or left:
            block = head or _body(source, min(left, MIB), spec.lfs)
            head = b""
            left -= len(block)
            sha256.update(block)
            if not spec.lfs:
                oid.update(block)
            file.write(block)
    digest = sha256.hexdigest()
    if not spec.lfs:
        return Entry(spec.path, spec.size, oid.hexdigest(), digest, False)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {spec.size}\n".encode()
    oid = git_oid(len(pointer))
    oid.update(pointer)
    return Entry(spec.path, spec.size, oid.hexdigest(), digest, True, len(pointer))


def _head(spec: FileSpec) -> bytes:
    """A shard is one tensor of bytes; a JSON file is one string."""
    if spec.path.endswith(".safetensors"):
        length = 256
        data = spec.size - 8 - length
        header = {tensor_name(spec.path): {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}}
        return length.to_bytes(8, "little") + json.dumps(header).encode().ljust(length)
    if spec.path.endswith(".json"):
        # Whole at once: a JSON file has an end as well.
        filler = random.Random(spec.path).randbytes(spec.size).hex()[: spec.size - 12]
        return b'{"text": "' + filler.encode() + b'"}'
    return b""


def _body(source: random.Random, length: int, binary: bool) -> bytes:
    return source.randbytes(length) if binary else source.randbytes(length).hex()[:length].encode()


def _drain(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(MIB)
        while file.readinto(buffer):
            pass
