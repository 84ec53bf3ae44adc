"""The same calls from mpi4py, through buffers and through derived datatypes. Prints TAP on rank 0."""

import sys
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
number = 0
bad = 0


def tell(good, name):
    """One TAP line, good only if it is on all ranks."""
    global number, bad
    number += 1
    good = world.allreduce(bool(good), op=MPI.LAND)
    bad += not good
    if world.rank == 0:
        print(f"{'ok' if good else 'not ok'} {number} - {name}", flush=True)


def block(rank, count):
    """What a rank contributes."""
    return array("d", (rank * 1000.5 + at for at in range(count)))


def whole(members, count):
    """What everybody receives."""
    return array("d", (value for rank in range(members) for value in block(rank, count)))


def main():
    """Runs all tests; returns the number of those that failed."""
    if world.rank == 0:
        print("1..8")
    count = 3000
    send, receive = block(world.rank, count), array("d", bytes(8 * count * world.size))
    world.Allgather(send, receive)
    tell(receive == whole(world.size, count), "Allgather")

    shared = block(1, count) if world.rank == 1 else array("d", bytes(8 * count))
    world.Bcast(shared, root=1)
    request = world.Ibcast(send if world.rank == 0 else receive[:count], root=0)
    request.Wait()
    tell(shared == block(1, count), "Bcast and Ibcast")

    mine = array("d", (value for _ in range(world.size) for value in send))
    receive, again = (array("d", bytes(8 * count * world.size)) for _ in range(2))
    counts, places = [count] * world.size, [count * rank for rank in range(world.size)]
    world.Alltoall(mine, receive)
    world.Ialltoallv([mine, counts, places, MPI.DOUBLE], [again, counts, places, MPI.DOUBLE]).Wait()
    gathered = array("d", bytes(8 * count * world.size))
    world.Iallgatherv(send, [gathered, counts, places, MPI.DOUBLE]).Wait()
    tell(gathered == receive == again == whole(world.size, count), "Iallgatherv, Alltoall and Ialltoallv")

    receive = array("d", bytes(8 * count * world.size))
    receive[world.rank * count : (world.rank + 1) * count] = send
    world.Iallgather(MPI.IN_PLACE, receive).Wait()
    tell(receive == whole(world.size, count), "Iallgather in place")

    heard, token = bytearray(1), bytes([world.rank])
    receive = array("d", bytes(8 * count * world.size))
    requests = [
        world.Irecv(heard, source=(world.rank + 1) % world.size),
        world.Iallgather(send, receive),
        world.Isend(token, dest=(world.rank - 1) % world.size),
    ]
    MPI.Request.Waitall(requests)
    tell(receive == whole(world.size, count) and heard[0] == (world.rank + 1) % world.size, "Waitall, mixed")

    total = array("d", bytes(8 * count))
    world.Iallreduce(send, total, op=MPI.SUM).Wait()
    expected = array("d", (sum(block(r, count)[at] for r in range(world.size)) for at in range(0, count, 500)))
    parts = array("d", bytes(8 * count)) if world.rank == 0 else None
    own = array("d", bytes(8 * (count // world.size)))
    world.Igather(send[: count // world.size], parts, root=0).Wait()
    world.Scatter(parts, own, root=0)
    tell(total[::500] == expected and own == send[: count // world.size], "Iallreduce, Igather and Scatter")

    half = world.Split(world.rank % 2, world.rank)
    gaps = MPI.DOUBLE.Create_resized(0, 16).Commit()
    spread = array("d", bytes(16 * count * half.size))
    half.Allgather([block(half.rank, count), count, MPI.DOUBLE], [spread, count, gaps])
    tell(spread[::2] == whole(half.size, count) and not any(spread[1::2]), "strided, on a part of the ranks")
    gaps.Free()
    half.Free()

    tell(world.allgather({"rank": world.rank}) == [{"rank": r} for r in range(world.size)], "objects")
    return bad


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
