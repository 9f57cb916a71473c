"""Hyperparameters within a tracker's limits."""

from __future__ import annotations

import json
import math

from accelbus_sinks._config import flat_config, shorten, text_of, write_config

CONFIG = {"lr": 0.1, "model": {"depth": 3, "name": "résnet"}, "betas": [0.9, math.inf], "resume": None, "amp": True, "prompt": "x" * 100}


def test_nesting_becomes_names_and_plain_values_stay():
    """Numbers, bools, None and text arrive as they are, lists as JSON."""
    flat = flat_config(CONFIG)
    assert flat.values == {
        "lr": 0.1, "model/depth": 3, "model/name": "résnet", "betas": "[0.9, Infinity]", "resume": None, "amp": True, "prompt": "x" * 100,
    }  # fmt: skip
    assert flat.shortened == ()


def test_what_is_too_long_is_cut_and_named():
    """A text beyond the limit loses its end, visibly; nothing is left out."""
    flat = flat_config({**CONFIG, "list": list(range(100))}, longest=50)
    assert flat.values["prompt"] == "x" * 49 + "…"
    assert len(flat.values["list"]) == 50
    assert flat.shortened == ("prompt", "list")
    assert len(flat.values) == 8


def test_trackers_that_only_have_text_get_text():
    """Every value as Python prints it, lists as JSON."""
    values = flat_config({**CONFIG, "clip": math.nan, "seed": 2**60}, as_text=True).values
    assert (values["lr"], values["model/depth"], values["resume"], values["amp"], values["clip"]) == ("0.1", "3", "None", "True", "nan")
    assert values["seed"] == str(2**60)
    assert text_of(["é", {"a": None}]) == '["é", {"a": null}]'


def test_the_file_has_everything(tmp_path):
    """The complete configuration is JSON that any parser takes, nested as it was."""
    path = write_config(tmp_path / "state" / "config.json", {**CONFIG, "clip": -math.inf, "sur": "\ud800"})

    def refuse(constant):
        raise AssertionError(constant)

    found = json.loads(path.read_bytes(), parse_constant=refuse)
    assert found == {**CONFIG, "betas": [0.9, "Infinity"], "clip": "-Infinity", "sur": "\ud800"}


def test_a_text_of_exactly_the_limit_is_whole():
    """Only what does not fit is cut."""
    assert shorten("x" * 5, 5) == "x" * 5
    assert shorten("x" * 6, 5) == "xxxx…"
