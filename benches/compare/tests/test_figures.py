"""Medians, targets and the analysis of busy connections."""

import unittest

from comparison.busy import left_when_not_full
from comparison.figures import TARGETS, Spread, durable_s, judge, spread, summarise
from comparison.peers import PEERS
from comparison.profiles import PROFILES
from comparison.server import Request

BLANK = {
    "sync_s": 0.0, "user_s": 1.0, "system_s": 0.5, "server_cpu_s": 0.1, "foreign_cpu_s": 0.0, "peak_bytes": 2**20, "requests": 10,
    "sent_bytes": 100, "size_bytes": 100, "left_at_first_drop": None, "busy_max": 0, "wall_uninterrupted_s": None, "ok": True,
    "syncs": False, "profile": "kimi16",
}


def run(peer: str, wall: float, **more) -> dict:
    return {**BLANK, "peer": peer, "wall_s": wall, **more}


def request(start: float, end: float, body: int, connection: int = 1) -> Request:
    return Request(end, end - start, connection, 206, body, body, "GET", "/files/x", "bytes=0-")


class Medians(unittest.TestCase):
    def test_a_spread_is_minimum_median_and_maximum(self):
        self.assertEqual(spread([3.0, 1.0, 2.0]), Spread(1.0, 2.0, 3.0))
        self.assertEqual(spread([None, 4.0]), Spread(4.0, 4.0, 4.0))
        self.assertIsNone(spread([]))
        self.assertIsNone(spread([None]))

    def test_a_peer_that_does_not_sync_is_done_after_the_sync(self):
        self.assertEqual(durable_s(run("hf-hub", 2.0, sync_s=1.5)), 3.5)
        self.assertEqual(durable_s(run("muster", 2.0, sync_s=1.5, syncs=True)), 2.0)

    def test_a_run_that_failed_counts_as_a_round_and_in_no_figure(self):
        summary = summarise([run("curl", 1.0), run("curl", 99.0, ok=False), run("curl", 3.0)])["kimi16"]["curl"]
        self.assertEqual((summary["ok"], summary["rounds"]), (2, 3))
        self.assertEqual(summary["wall_s"], Spread(1.0, 2.0, 3.0))

    def test_a_peer_that_never_ended_well_has_no_figures(self):
        summary = summarise([run("curl", 1.0, ok=False)])["kimi16"]["curl"]
        self.assertIsNone(summary["time_s"])


class Targets(unittest.TestCase):
    def judged(self, runs: list[dict], **more):
        sizes = {name: 2_000_000_000 for name in PROFILES}
        found = judge(summarise(runs), more.get("limits", {}), sizes, ["muster", "hf-hub", "hf"])
        return {(each.target.profile, each.target.text): each for each in found}

    def test_every_target_names_a_profile_and_peers_that_exist(self):
        for target in TARGETS:
            self.assertIn(target.profile, PROFILES)
            self.assertIn(target.subject, PEERS)
            self.assertIn(target.against, {*PEERS, None, "best", "hf-hub+sha"})

    def test_a_ratio_at_the_limit_is_met_and_above_it_missed(self):
        key = ("kimi16", "time of muster / hf-hub")
        met = self.judged([run("muster", 85.0), run("hf-hub", 100.0)])[key]
        self.assertEqual((met.value, met.met), (0.85, True))
        missed = self.judged([run("muster", 86.0), run("hf-hub", 100.0)])[key]
        self.assertFalse(missed.met)

    def test_a_peer_that_did_not_run_leaves_its_target_open_and_says_so(self):
        judged = self.judged([run("muster", 1.0)])[("kimi16", "time of muster / hf")]
        self.assertIsNone(judged.met)
        self.assertIn("hf did not run", judged.why)

    def test_the_cpu_allowance_is_hf_hub_and_hashing_of_the_same_bytes(self):
        # 2,000 MB at 1,600 MB/s is 1.25 s; 1.6 of them and hf-hub's 1.5 s are 3.5 s.
        limits = {"kimi16": {"sha256_cpu_second": Spread(1600, 1600, 1600)}}
        runs = [run("muster", 1.0, user_s=6.5), run("hf-hub", 1.0)]
        judged = self.judged(runs, limits=limits)[("kimi16", "CPU of muster / (hf-hub + 1.6 × SHA-256 of the bytes)")]
        self.assertAlmostEqual(judged.value, 2.0)

    def test_the_best_peer_is_the_fastest_that_speaks_the_hub(self):
        runs = [run(*of, profile="rtt80") for of in (("muster", 3.0), ("hf-hub", 4.0), ("hf", 2.0), ("rclone", 0.1))]
        judged = self.judged(runs)[("rtt80", "time of muster / the best peer that speaks the Hub")]
        self.assertEqual(judged.value, 1.5)
        self.assertIn("hf", judged.why)

    def test_profiles_that_did_not_run_are_not_judged(self):
        self.assertEqual({profile for profile, _ in self.judged([run("muster", 1.0)])}, {"kimi16"})


class BusyConnections(unittest.TestCase):
    def test_connections_that_end_together_leave_nothing(self):
        full, left = left_when_not_full([request(0, 10, 1000, n) for n in range(4)])
        self.assertEqual(full, 4)
        self.assertLess(left, 0.01)

    def test_one_connection_that_works_on_alone_leaves_its_rest(self):
        requests = [request(0, 10, 1000, n) for n in range(3)] + [request(0, 20, 2000, 3)]
        full, left = left_when_not_full(requests)
        self.assertEqual(full, 4)
        # 1,000 of 5,000 bytes come after second 10.
        self.assertAlmostEqual(left, 0.2, delta=0.01)

    def test_pauses_between_the_ranges_of_a_connection_are_no_drop(self):
        requests = [request(t, t + 0.95, 95, n) for n in range(4) for t in range(10)]
        self.assertEqual(left_when_not_full(requests)[0], 4)
        self.assertLess(left_when_not_full(requests)[1], 0.01)

    def test_staggered_pauses_of_many_connections_are_no_drop(self):
        requests = [request(n / 64 + t, n / 64 + t + 0.8, 80, n) for n in range(64) for t in range(10)]
        full, left = left_when_not_full(requests)
        self.assertEqual(full, 64)
        # They end within the last second, one after the other.
        self.assertLess(left, 0.1)

    def test_a_long_pause_of_one_connection_is_a_drop(self):
        requests = [request(0, 10, 1000, n) for n in range(3)] + [request(0, 4, 400, 3), request(6, 10, 400, 3)]
        self.assertGreater(left_when_not_full(requests)[1], 0.5)

    def test_the_way_up_to_the_full_number_is_no_drop(self):
        requests = [request(n, 20, 100 * (20 - n), n) for n in range(4)]
        full, left = left_when_not_full(requests)
        self.assertEqual(full, 4)
        self.assertLess(left, 0.01)

    def test_no_bodies_say_nothing(self):
        self.assertEqual(left_when_not_full([]), (0, None))


if __name__ == "__main__":
    unittest.main()
