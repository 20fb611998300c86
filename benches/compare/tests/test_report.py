"""Plots and report: well formed, complete, and honest about who lost and who could not be had."""

import json
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from comparison import report
from comparison.figures import Spread
from comparison.plots import Bar, bars, number, ticks

from .test_figures import run

SVG = "{http://www.w3.org/2000/svg}"


def comparison(runs: list[dict]) -> dict:
    peer = {"version": "1", "note": "a | b", "verifies": False, "syncs": False, "speaks_hub": True}
    return {
        "runs": [{"exit": 0, "wrong": [], "message": "", "round": 0, **each} for each in runs],
        "limits": [{"profile": "kimi16", "round": 0, "sha256_one_core": 1700.0}],
        "sizes": {"kimi16": 2_000_000_000},
        "missing": {"aria2c": "aria2c is not on PATH"},
        "peers": {each["peer"]: peer for each in runs},
        "machine": {"cpu": "a machine"},
        "setting": {"rounds": 1, "scale": 1.0},
    }


class Plots(unittest.TestCase):
    def test_ticks_are_round_and_reach_the_top(self):
        self.assertEqual(ticks(4.3), [0, 1, 2, 3, 4, 5])
        self.assertEqual(ticks(0.5), [0, 0.1, 0.2, 0.3, 0.4, 0.5])
        for top in (0.001, 0.07, 1, 3.3, 12, 99, 101, 7300):
            self.assertGreaterEqual(ticks(top)[-1], top)
            self.assertLessEqual(len(ticks(top)), 7)
        self.assertEqual(ticks(0), [0.0, 1.0])

    def test_numbers_have_three_digits_that_count(self):
        self.assertEqual([number(1.234), number(12.34), number(123.4)], ["1.23", "12.3", "123"])

    def test_a_plot_is_a_document_with_a_bar_and_a_whisker_each(self):
        rows = [Bar("muster", Spread(1, 2, 3), True, True), Bar("<hf> & co", Spread(4, 4, 4), False, False)]
        root = ElementTree.fromstring(bars("title & more", "seconds", rows))
        labels = [text.text for text in root.iter(f"{SVG}text")]
        self.assertIn("<hf> & co", labels)
        self.assertIn("2.00", labels)
        # One value that all rounds gave has no whisker.
        self.assertEqual(len(list(root.iter(f"{SVG}path"))), 1)
        widths = [float(rect.get("width")) for rect in root.iter(f"{SVG}rect") if rect.get("height") == "18"]
        self.assertAlmostEqual(widths[1] / widths[0], 2.0, places=2)

    def test_everything_stays_inside_the_picture(self):
        root = ElementTree.fromstring(bars("t", "s", [Bar("x", Spread(90, 95, 100), False, True)]))
        for rect in root.iter(f"{SVG}rect"):
            self.assertLessEqual(float(rect.get("x", 0)) + float(rect.get("width")), float(root.get("width")))


class Report(unittest.TestCase):
    def test_the_files_are_whole_and_say_what_was_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            report.write(comparison([run("muster", 2.0), run("hf-hub", 4.0)]), Path(folder))
            document = json.loads((Path(folder) / "report.json").read_text())
            self.assertEqual(document["summary"]["kimi16"]["muster"]["wall_s"]["mid"], 2.0)
            self.assertTrue(any(target["met"] for target in document["targets"]))
            text = (Path(folder) / "report.md").read_text()
            self.assertIn("aria2c is not on PATH", text)
            self.assertIn("![kimi16](kimi16.svg)", text)
            self.assertIn("a \\| b", text)
            ElementTree.fromstring((Path(folder) / "kimi16.svg").read_text())
            self.assertEqual(sorted(path.name for path in Path(folder).iterdir()), ["kimi16.svg", "report.json", "report.md"])

    def test_where_muster_loses_stands_there_plainly(self):
        with tempfile.TemporaryDirectory() as folder:
            report.write(comparison([run("muster", 4.0), run("hf-hub", 2.0)]), Path(folder))
            text = (Path(folder) / "report.md").read_text()
            self.assertIn("hf-hub (verifies nothing): 2.00 s, muster takes 2.00 times as long", text)
            self.assertIn("target missed: kimi16, time of muster / hf-hub: 2.000, limit 0.85", text)

    def test_a_peer_whose_content_was_wrong_is_named_and_ranks_last(self):
        runs = [run("hf-hub", 1.0, ok=False, wrong=["config.json: wrong content"]), run("muster", 4.0)]
        with tempfile.TemporaryDirectory() as folder:
            report.write(comparison(runs), Path(folder))
            text = (Path(folder) / "report.md").read_text()
        self.assertIn("hf-hub: 1 of its runs did not end well (first: exit 0; config.json: wrong content)", text)
        self.assertIn("| hf-hub | - |", text)

    def test_a_machine_that_others_used_is_said_to_be_so(self):
        quiet, loud = comparison([run("muster", 4.0)]), comparison([run("muster", 4.0, foreign_cpu_s=4.0)])
        self.assertNotIn("not quiet", report.text(quiet))
        self.assertIn("not quiet: beside peers and server 1.00 cores", report.text(loud))


if __name__ == "__main__":
    unittest.main()
