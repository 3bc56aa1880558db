"""The benchmark that follows one write through its hops: what it measures is in the code, and told in order."""

import asyncio
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rayka
from benchmarks import hop_marks
from benchmarks.hop_drawing import Drawn, drawing
from benchmarks.hop_marks import Note
from benchmarks.hops import HOPS, Notes, Write, path_of
from rayka.protocol.later import Later

CLIENT, LEADER, FIRST, SECOND = 1, 2, 3, 4
WRITE = Write(0, 1_000)
FOLLOWER_MARKS = ("the records are there", "the copy is made", "the next fetch is encoded")


def notes_of_one_write() -> list[Note]:
    """Every mark 10 ns after the one before, and those of a follower that was sooner."""
    notes = []
    for number, hop in enumerate(HOPS[:-1], 1):
        is_clients = hop.mark in ("the IO thread begins", "the call is encoded", "the answer is there")
        pid = CLIENT if is_clients else SECOND if hop.mark in FOLLOWER_MARKS else LEADER
        notes.append(Note(10 * number, pid, hop.mark))
    sooner = [Note(each.at_ns - 5, FIRST, each.name) for each in notes if each.name in FOLLOWER_MARKS]
    return sorted([*notes, *sooner])


def test_every_function_that_is_measured_is_in_the_code() -> None:
    hop_marks.check()


def test_the_slower_follower_is_followed() -> None:
    path = path_of(WRITE, Notes(notes_of_one_write()), CLIENT)
    assert path == [*(10 * number for number in range(1, len(HOPS))), WRITE.end_ns]


@pytest.mark.parametrize("missing", [hop.mark for hop in HOPS[:-1]])
def test_a_write_that_misses_a_note_does_not_count(missing: str) -> None:
    notes = [each for each in notes_of_one_write() if each.name != missing]
    assert path_of(WRITE, Notes(notes), CLIENT) is None


def test_notes_are_taken_of_calls_of_the_api_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Node:
        def handle(self, api_name: str) -> str:
            return api_name

    hop = hop_marks.Hop("", "Node.handle", "the call arrives", "the answer is ready", "produce", 1)
    monkeypatch.setattr(Node, "handle", hop_marks.noting(Node.handle, hop, hop_marks.Notebook(tmp_path)))
    assert (Node().handle("produce"), Node().handle("fetch")) == ("produce", "fetch")
    found = hop_marks.read(tmp_path)
    assert [(each.pid, each.name) for each in found] == [
        (os.getpid(), "the call arrives"),
        (os.getpid(), "the answer is ready"),
    ]


def test_the_end_of_a_call_that_waits_is_noted_when_its_answer_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Node:
        def handle(self, answer: Later[str]) -> Later[str]:
            return answer

    hop = hop_marks.Hop("", "Node.handle", "the call arrives", "the answer is ready")
    monkeypatch.setattr(Node, "handle", hop_marks.noting(Node.handle, hop, hop_marks.Notebook(tmp_path)))

    async def answers() -> list[object]:
        answer: Later[str] = Later()
        told: list[object] = []
        Node().handle(answer).then(told.append)
        assert [each.name for each in hop_marks.read(tmp_path)] == ["the call arrives"]
        answer.end("answer")
        return told

    assert asyncio.run(answers()) == ["answer"]
    assert [each.name for each in hop_marks.read(tmp_path)] == ["the call arrives", "the answer is ready"]


def test_the_drawing_names_every_hop_once_beside_its_figures() -> None:
    figures = [float(100 + number) for number in range(len(HOPS))]
    drawn = Drawn(HOPS, figures, 1500.0, 3000.0, 9, 10, {"client": 700.0})
    texts = [each.text or "" for each in ElementTree.fromstring(drawing(drawn, drawn)).iter() if each.text]
    for hop in HOPS:
        assert texts.count(f"{hop.lane}: {hop.text}") == sum(
            (each.lane, each.text) == (hop.lane, hop.text) for each in HOPS
        )


def test_the_drawing_in_the_pages_tells_of_every_hop_in_order() -> None:
    page = Path(rayka.__file__).parent / "docs" / "where-the-time-goes.svg"
    texts = [each.text or "" for each in ElementTree.fromstring(page.read_text()).iter()]
    hops = [f"{hop.lane}: {hop.text}" for hop in HOPS]
    assert [each for each in texts if each in hops] == hops
