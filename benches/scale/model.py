"""Makes a model on a volume as a pull would have left it: files, manifest, and a receipt by `muster verify`."""

import concurrent.futures
import hashlib
import json
import os
import subprocess

BLOCK = 4 << 20
COMMIT = "5ca1ab1e" * 5


def _header(size, tensor):
    """A safetensors header whose one tensor fills the rest of the file."""
    for room in (128, 64):
        length = size - 8 - room
        if length < 0:
            continue
        text = json.dumps({tensor: {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}})
        return room.to_bytes(8, "little") + text.encode().ljust(room)
    raise ValueError(f"{size} bytes are too few for a safetensors file")


def _write(job):
    path, size, seed = job
    # One random block a process; every file differs from its first bytes on.
    block = _write.block = getattr(_write, "block", None) or os.urandom(BLOCK)
    digest = hashlib.sha256()
    head = _header(size, f"w{seed}")
    with open(path, "wb", buffering=0) as file:
        left = size
        for piece in (head, seed.to_bytes(8, "little")):
            piece = piece[:left]
            file.write(piece)
            digest.update(piece)
            left -= len(piece)
        view = memoryview(block)
        while left:
            piece = view[: min(left, BLOCK)]
            digest.update(piece)
            left -= file.write(piece)
    return os.path.basename(path), size, digest.hexdigest()


class Model:
    """A verified model: `repo` under `volume`, `count` shards of `size` bytes."""

    def __init__(self, volume, repo, count, size):
        self.volume, self.repo, self.count, self.size = volume, repo, count, size
        self.directory = os.path.join(volume, repo)

    @property
    def bytes(self):
        return self.count * self.size

    @property
    def names(self):
        return [f"model-{at:05}-of-{self.count:06}.safetensors" for at in range(1, self.count + 1)]

    def paths(self):
        return [os.path.join(self.directory, name) for name in self.names]

    def make(self, muster, workers):
        own = os.path.join(self.directory, ".muster")
        os.makedirs(own)
        jobs = [(path, self.size, at) for at, path in enumerate(self.paths())]
        with concurrent.futures.ProcessPoolExecutor(workers) as pool:
            self.entries = list(pool.map(_write, jobs, chunksize=max(1, len(jobs) // (workers * 8))))
        index = json.dumps({"metadata": {}, "weight_map": {f"w{at}": name for at, name in enumerate(self.names)}})
        blob = hashlib.sha1(b"blob %d\0" % len(index) + index.encode()).hexdigest()
        with open(os.path.join(self.directory, "model.safetensors.index.json"), "w") as file:
            file.write(index)
        files = [{"path": name, "size": size, "digest": f"sha256:{digest}"} for name, size, digest in self.entries]
        files.append({"path": "model.safetensors.index.json", "size": len(index), "digest": f"git-sha1:{blob}"})
        manifest = {
            "schema": 1,
            "repo": {"kind": "model", "id": self.repo},
            "endpoint": "http://127.0.0.1:9",
            "revision": "main",
            "commit": COMMIT,
            "selection": {"include": [], "exclude": []},
            "files": sorted(files, key=lambda entry: entry["path"]),
        }
        with open(os.path.join(own, "manifest.json"), "w") as file:
            json.dump(manifest, file)
        self.manifest = manifest
        command = [muster, "verify", self.repo, "--volume", self.volume, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return self
