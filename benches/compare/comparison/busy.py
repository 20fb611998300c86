"""How long all connections stay busy: read from the server's log of a fetch over paced connections.

On a paced connection a body flows evenly from its request to its end, so the log alone tells how many
connections were at work at any moment and how much was still to come.
"""

BIN_S = 0.1
# A pause between two ranges of one connection is no idle connection.
DROP_S = 0.5


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
        rate = request.body / request.duration
        for n in range(int((request.start - start) / BIN_S), min(bins, int((request.end - start) / BIN_S) + 1)):
            low, high = start + n * BIN_S, start + (n + 1) * BIN_S
            overlap = max(0.0, min(high, request.end) - max(low, request.start))
            busy[n] += overlap / BIN_S
            bytes_in[n] += overlap * rate
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
