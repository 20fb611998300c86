"""Files, answers, checks and the ending of processes."""

import json
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace

from comparison.content import INDEX, prepare
from comparison.measure import clean_environment, end_session, kill_at_written, session_members, wrong_files
from comparison.peers import finish
from comparison.profiles import PROFILES
from comparison.server import parse_request, tree_entries


class Content(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.repository = prepare(PROFILES["smoke"], 0.1, cls.folder, lambda text: None)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_the_files_are_the_same_each_time_and_kept(self):
        said = []
        again = prepare(PROFILES["smoke"], 0.1, self.folder, said.append)
        self.assertEqual((again, said), (self.repository, []))
        with tempfile.TemporaryDirectory() as other:
            elsewhere = prepare(PROFILES["smoke"], 0.1, Path(other), said.append)
            self.assertEqual((elsewhere.commit, elsewhere.entries), (self.repository.commit, self.repository.entries))

    def test_a_shard_is_one_whole_safetensors_file_and_the_index_names_it(self):
        for entry in self.repository.lfs:
            data = (self.repository.folder / entry.path).read_bytes()
            length = int.from_bytes(data[:8], "little")
            (tensor,) = json.loads(data[8 : 8 + length]).items()
            self.assertEqual(tensor[1]["data_offsets"], [0, len(data) - 8 - length])
        index = json.loads((self.repository.folder / INDEX).read_text())
        self.assertEqual(sorted(index["weight_map"].values()), [entry.path for entry in self.repository.lfs])

    def test_the_blob_ids_are_those_of_git(self):
        if not shutil.which("git"):
            self.skipTest("git is not installed")
        blobs = [entry for entry in self.repository.entries if not entry.lfs]
        paths = "".join(f"{self.repository.folder / entry.path}\n" for entry in blobs)
        done = subprocess.run(["git", "hash-object", "--no-filters", "--stdin-paths"], input=paths, text=True, capture_output=True)
        self.assertEqual(done.stdout.split(), [entry.oid for entry in blobs])

    def test_the_tree_lists_lfs_files_with_digest_and_size(self):
        tree = {item["path"]: item for item in tree_entries(self.repository)}
        for entry in self.repository.lfs:
            self.assertEqual(tree[entry.path]["lfs"]["oid"], entry.sha256)
        self.assertEqual(tree["data"]["type"], "directory")

    def test_every_sort_of_wrong_file_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(self.repository.folder, copy)
            self.assertEqual(wrong_files(self.repository, copy), [])
            shard, small = self.repository.lfs[0].path, "config.json"
            data = bytearray((copy / shard).read_bytes())
            data[-1] ^= 1
            (copy / shard).write_bytes(data)
            (copy / small).write_bytes(b"short")
            (copy / INDEX).unlink()
            found = sorted(wrong_files(self.repository, copy))
        self.assertEqual(found, [f"{small}: 5 bytes of 4800", f"{shard}: wrong content", f"{INDEX}: No such file or directory"])


class Running(unittest.TestCase):
    def test_a_line_of_the_log_is_read_back(self):
        request = parse_request('1764655200.500 0.250 7 206 1300 1000 GET /files/a b.bin "bytes=0-999"')
        self.assertEqual((request.start, request.body, request.path), (1764655200.25, 1000, "/files/a b.bin"))
        self.assertEqual(request.bytes_range, "bytes=0-999")

    def test_a_peer_gets_nothing_of_the_users_environment(self):
        server = SimpleNamespace(hub="http://127.0.0.1:1", ca=None)
        environment = clean_environment(SimpleNamespace(server=server, scratch=Path("/nowhere")))
        self.assertNotIn("HF_TOKEN", environment)
        self.assertEqual(environment["HOME"], "/nowhere/home")
        self.assertEqual(environment["HF_HUB_DISABLE_TELEMETRY"], "1")

    def test_what_a_peer_leaves_in_its_session_is_ended(self):
        process = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"], start_new_session=True)
        deadline = time.monotonic() + 10
        while len(session_members(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        end_session(process)
        self.assertEqual(session_members(process.pid), [])
        self.assertIsNotNone(process.poll())

    def test_a_step_of_the_preparation_that_is_interrupted_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder) / "session"
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            try:
                with self.assertRaises(KeyboardInterrupt):
                    finish(["sh", "-c", f"echo $$ > {note}; sleep 600 & sleep 600"])
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            session = int(note.read_text())
        deadline = time.monotonic() + 10
        while session_members(session) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(session_members(session), [])

    def test_a_kill_comes_once_so_much_is_written(self):
        command = "while :; do printf %01000d 0; done > file & wait"
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(["sh", "-c", command], cwd=folder, start_new_session=True)
            kill_at_written(process, 300_000)
            end_session(process)
            self.assertGreaterEqual((Path(folder) / "file").stat().st_size, 300_000)


if __name__ == "__main__":
    unittest.main()
