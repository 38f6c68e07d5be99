"""Events: each listener hears each event once, until it stops."""

from torch_galley.core.events import Flushed, Warned, emit, listen


def test_listeners_hear_in_order_until_they_stop():
    first, second = [], []
    stop_first = listen(first.append)
    stop_second = listen(second.append)
    try:
        emit(Warned("a"))
        stop_first()
        emit(Warned("b"))
    finally:
        stop_first()  # a second time does nothing
        stop_second()
    emit(Flushed("sync", 1))
    assert first == [Warned("a")]
    assert second == [Warned("a"), Warned("b")]


def test_a_listener_may_stop_itself_without_costing_another_its_event():
    heard = []
    stops = []

    def once(event):
        heard.append("once")
        stops[0]()

    stops.append(listen(once))
    stops.append(listen(lambda event: heard.append("other")))
    try:
        emit(Warned("a"))
        emit(Warned("b"))
    finally:
        for stop in stops:
            stop()
    assert heard == ["once", "other", "other"]
