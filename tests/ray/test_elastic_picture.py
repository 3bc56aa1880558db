"""The picture of a run of `elastic`. Needs no Ray."""

from xml.etree import ElementTree

from tests.ray.elastic_picture import Look, Mark, p99s_ms, picture, rates

ACKNOWLEDGED = [(0.1 * number, 0.010 if number % 100 else 0.5) for number in range(1, 201)]


def look(at_s: float, brokers: int, moves: int = 0) -> Look:
    sizes = {each: 1_000_000 * each for each in range(1, brokers + 1)}
    return Look(at_s, brokers, brokers, moves, sizes, 1_000, tuple(sizes))


def test_what_is_sent_is_counted_by_two_seconds() -> None:
    assert rates(ACKNOWLEDGED)[1:9] == [(2 * each + 1.0, 10.0) for each in range(1, 9)]
    assert p99s_ms(ACKNOWLEDGED)[4:6] == [(9.0, 10.0), (11.0, 500.0)]
    assert max(p99s_ms(ACKNOWLEDGED)) == (21.0, 500.0)
    assert rates([]) == []


def test_the_picture_has_a_line_for_each_broker_and_a_mark_for_what_was_done() -> None:
    looks = [look(0.0, 3), look(5.0, 4, moves=2), look(20.0, 3)]
    drawn = ElementTree.fromstring(picture(looks, [Mark(4.0, "a < b")], ACKNOWLEDGED))
    texts = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert {"a < b", "broker 4", "brokers", "machines", "MB a broker", "20 s"} <= set(texts)
    lines = [each for each in drawn.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 1 + 2 + 4 + 1 + 1
    brokers = lines[1].attrib["points"].split()
    assert len(brokers) == 6, "a corner before each step"
