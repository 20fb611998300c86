"""How long all connections stay busy: read from the server's log of a fetch over paced connections.

On a paced connection a body flows evenly from its request to its end, so the log alone tells how many
connections were at work at any moment and how much was still to come.
"""

BIN_S = 0.1
DROP_S = 0.5
# The moment between two ranges of one connection is no idle connection.
PAUSE_S = 0.25


def left_when_not_full(requests) -> tuple[int, float | None]:
    """The most connections busy at a time, and the share of bytes still to come when they first were fewer.

    Fewer: for half a second on end, after that most had been reached. None when nothing can be said.
    """
    requests = [request for request in requests if request.body and request.duration > 0]
    if not requests:
        return 0, None
    start = min(request.start for request in requests)
    end = max(request.end for request in requests)
    bins = int((end - start) / BIN_S) + 1
    busy, bytes_in = [0.0] * bins, [0.0] * bins
    for request in requests:
        for n, overlap in _bins(request.start - start, request.end - start, bins):
            bytes_in[n] += overlap * request.body / request.duration
    for since, until in _at_work(requests):
        for n, overlap in _bins(since - start, until - start, bins):
            busy[n] += overlap / BIN_S
    full = round(max(busy))
    total = sum(bytes_in)
    reached, run = False, 0
    for n, count in enumerate(busy):
        # Half a connection may be the pauses of many.
        if count >= full - 0.5:
            reached, run = True, 0
        elif reached:
            run += 1
            if run >= DROP_S / BIN_S:
                return full, sum(bytes_in[n - run + 1 :]) / total
    return full, 0.0 if run == 0 else sum(bytes_in[bins - run :]) / total


def _bins(since: float, until: float, bins: int):
    """The bins that an interval touches, and for how many seconds."""
    for n in range(int(since / BIN_S), min(bins, int(until / BIN_S) + 1)):
        overlap = min((n + 1) * BIN_S, until) - max(n * BIN_S, since)
        if overlap > 0:
            yield n, overlap


def _at_work(requests):
    """Each connection's intervals of work, short pauses between its requests included."""
    by_connection: dict[int, list] = {}
    for request in sorted(requests, key=lambda request: request.start):
        by_connection.setdefault(request.connection, []).append(request)
    for of in by_connection.values():
        since, until = of[0].start, of[0].end
        for request in of[1:]:
            if request.start - until > PAUSE_S:
                yield since, until
                since = request.start
            until = max(until, request.end)
        yield since, until
