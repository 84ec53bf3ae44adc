"""Personalised PageRank of a graph, its vectors gathered by Iallgather while others are computed.

    mpirun -n 4 python pagerank.py graph.mtx
    mpirun -n 4 python pagerank.py --generate 524288 16 1

The twin of pagerank.c in mpi4py and NumPy: same options, same graph, same order of every sum, same digest.
"""

import argparse
import json
import os
import sys
import zlib

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
GOLDEN, MIX_1, MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class MatrixError(Exception):
    """What is wrong with a Matrix Market file, and in which line."""


def splitmix64(at):
    """The mixing function of the generator (splitmix64), on arrays of uint64."""
    at = at + GOLDEN
    at = (at ^ (at >> np.uint64(30))) * MIX_1
    at = (at ^ (at >> np.uint64(27))) * MIX_2
    return at ^ (at >> np.uint64(31))


def generate(nodes, links, seed):
    """Links to drawn nodes from each node, but for about one in 64, which links to none."""
    own = splitmix64(np.uint64(seed) ^ splitmix64(np.arange(nodes, dtype=np.uint64)))
    linking = np.flatnonzero(own % np.uint64(64))
    drawn = splitmix64(own[linking, None] + np.arange(links, dtype=np.uint64)[None, :]) % np.uint64(nodes)
    source = np.repeat(linking, links)
    return nodes, source, drawn.astype(np.int64).ravel(), np.ones(len(source))


def lines_of(path):
    """The lines that are neither empty nor comments, with their numbers."""
    with open(path, encoding="ascii", errors="replace") as file:
        for number, text in enumerate(file, 1):
            if number == 1 or (text.strip() and not text.lstrip().startswith("%")):
                yield number, text


def read_banner(path, lines):
    """Whether the matrix is a pattern, and whether it is symmetric."""
    _, text = next(lines, (1, None))
    if text is None:
        raise MatrixError(f"{path}:1: the file is empty")
    words = text.lower().split()
    if len(words) < 5 or words[0] != "%%matrixmarket":
        raise MatrixError(f'{path}:1: expected "%%MatrixMarket matrix coordinate FIELD SYMMETRY"')
    if words[1:3] != ["matrix", "coordinate"]:
        raise MatrixError(f'{path}:1: only "matrix coordinate" can be read')
    if words[3] not in ("real", "integer", "pattern"):
        raise MatrixError(f"{path}:1: the field must be real, integer or pattern")
    if words[4] not in ("general", "symmetric"):
        raise MatrixError(f"{path}:1: the symmetry must be general or symmetric")
    return words[3] == "pattern", words[4] == "symmetric"


def read_sizes(path, lines):
    """The number of nodes and of entries."""
    number, text = next(lines, (1, None))
    if text is None:
        raise MatrixError(f"{path}:{number}: the file ends before the line of sizes")
    try:
        rows, columns, entries = (int(word) for word in text.split())
    except ValueError:
        raise MatrixError(f"{path}:{number}: expected ROWS COLUMNS ENTRIES") from None
    if rows != columns:
        raise MatrixError(f"{path}:{number}: the matrix of a graph is square, this one is not")
    if not 1 <= rows <= 2**31 - 1 or entries < 0:
        raise MatrixError(f"{path}:{number}: ROWS must lie in 1 .. 2147483647 and ENTRIES be at least 0")
    return rows, entries


def read_entry(text, pattern, rows):
    """One entry: row and column from 0, weight."""
    words = text.split()
    if len(words) != (2 if pattern else 3):
        raise ValueError("expected ROW COLUMN" + ("" if pattern else " VALUE"))
    row, column, weight = int(words[0]), int(words[1]), 1.0 if pattern else float(words[2])
    if not (1 <= row <= rows and 1 <= column <= rows):
        raise ValueError("the row or column lies outside the matrix")
    if not 0.0 <= weight < float("inf"):
        raise ValueError("PageRank needs finite values of at least 0")
    return row - 1, column - 1, weight


def read_matrix(path):
    """Nodes, and source, target and weight of the links in the order of the file."""
    lines = lines_of(path)
    pattern, symmetric = read_banner(path, lines)
    rows, entries = read_sizes(path, lines)
    links, read, number = [], 0, 0
    for number, text in lines:
        if read == entries:
            raise MatrixError(f"{path}:{number}: there are more entries than the line of sizes says")
        try:
            row, column, weight = read_entry(text, pattern, rows)
        except ValueError as error:
            raise MatrixError(f"{path}:{number}: {error}") from None
        links.append((row, column, weight))
        if symmetric and row != column:
            links.append((column, row, weight))
        read += 1
    if read < entries:
        raise MatrixError(f"{path}:{number}: the file ends after {read} of {entries} entries")
    table = np.array(links, dtype=[("source", np.int64), ("target", np.int64), ("weight", np.float64)])
    return rows, table["source"], table["target"], table["weight"]


class Share:
    """The rows that this rank owns of the transposed, normalised matrix."""

    def __init__(self, nodes, source, target, weight):
        self.nodes = nodes
        self.block = -(-nodes // WORLD.size)
        self.first = min(self.block * WORLD.rank, nodes)
        self.own = min(nodes - self.first, self.block)
        out = np.bincount(source, weights=weight, minlength=nodes)
        self.dangling = np.flatnonzero(out == 0.0)
        mine = np.flatnonzero((target >= self.first) & (target < self.first + self.own) & (weight != 0.0))
        self.row, self.column = target[mine] - self.first, source[mine]
        self.value = weight[mine] / out[self.column]

    def jump(self, vector, vectors):
        """Where vector jumps to: the nodes whose number leaves that remainder."""
        jump = np.zeros(self.nodes)
        jump[vector::vectors] = 1.0 / len(range(vector, self.nodes, vectors))
        return jump

    def multiply(self, damping, whole, jump, part):
        """One step for the own rows. (bincount and accumulate add one by one, in order; sum does not.)"""
        lost = np.add.accumulate(whole[self.dangling])[-1] if len(self.dangling) else 0.0
        back = damping * lost + (1.0 - damping)
        products = self.value * whole[self.column]
        sums = np.bincount(self.row, weights=products, minlength=self.own)
        part[: self.own] = damping * sums + back * jump[self.first : self.first + self.own]


def iterate(share, options):
    """Runs all iterations; returns the vectors, the time of each iteration, the time in all and in MPI."""
    jumps = [share.jump(k, options.vectors) for k in range(options.vectors)]
    whole = [np.zeros(share.block * WORLD.size) for _ in jumps]
    part = [np.zeros(share.block) for _ in jumps]
    for vector, jump in zip(whole, jumps):
        vector[: share.nodes] = jump
    requests = [MPI.REQUEST_NULL] * options.vectors
    iterations, in_mpi = [], 0.0
    WORLD.Barrier()
    began = turned = MPI.Wtime()
    for _ in range(options.iterations):
        for k in range(options.vectors):
            before = MPI.Wtime()
            requests[k].Wait()
            in_mpi += MPI.Wtime() - before
            share.multiply(options.damping, whole[k], jumps[k], part[k])
            before = MPI.Wtime()
            requests[k] = WORLD.Iallgather(part[k], whole[k])
            in_mpi += MPI.Wtime() - before
        now = MPI.Wtime()
        iterations.append(now - turned)
        turned = now
    before = MPI.Wtime()
    MPI.Request.Waitall(requests)
    now = MPI.Wtime()
    return [vector[: share.nodes] for vector in whole], np.array(iterations), now - began, in_mpi + now - before


def report(share, options, vectors, iterations, total, in_mpi):
    """Prints what was computed and how long the slowest rank took; false when ranks disagree."""
    digest = 0
    for vector in vectors:
        digest = zlib.crc32(vector.tobytes(), digest)
    agreed = WORLD.allreduce(digest, op=MPI.MIN) == WORLD.allreduce(digest, op=MPI.MAX)
    total, in_mpi = WORLD.allreduce(total, op=MPI.MAX), WORLD.allreduce(in_mpi, op=MPI.MAX)
    entries = WORLD.allreduce(len(share.value), op=MPI.SUM)
    slowest = np.zeros_like(iterations)
    WORLD.Allreduce(iterations, slowest, op=MPI.MAX)
    if WORLD.rank != 0:
        return agreed
    if not agreed:
        print("pagerank: ranks disagree about the result", file=sys.stderr)
        return False
    count, size = options.iterations, share.block * 8
    mean, median, mpi_ms = total * 1e3 / count, float(np.sort(slowest)[count // 2]) * 1e3, in_mpi * 1e3 / count
    top, mass = int(np.argmax(vectors[0])) + 1, float(np.add.accumulate(vectors[0])[-1])
    print(
        f"graph       {share.nodes} nodes, {entries} links, {options.vectors} vectors, {WORLD.size} ranks, "
        f"{size} bytes per gather"
    )
    print(f"iteration   {mean:.3f} ms mean, {median:.3f} ms median; in MPI {mpi_ms:.3f} ms")
    print(f"result      node {top} ranks first in vector 0, mass {mass:.12f}, digest {digest:08x}")
    if options.json:
        row = {"program": "pagerank.py", "ranks": WORLD.size, "rows": share.nodes, "nonzeros": entries}
        row |= {"vectors": options.vectors, "iterations": count, "bytes_per_rank": size, "time_s": total}
        row |= {"iteration_ms": mean, "iteration_median_ms": median, "mpi_ms_per_iteration": mpi_ms}
        row |= {"top": top, "mass": mass, "digest": f"{digest:08x}"}
        print(json.dumps(row, separators=(",", ":")), flush=True)
    return True


def parse_options():
    """The options of pagerank.c, but for --write-matrix."""
    parser = argparse.ArgumentParser(prog="pagerank", description=__doc__.splitlines()[0])
    parser.add_argument("matrix", nargs="?", help="Matrix Market file, coordinate format")
    parser.add_argument("--generate", nargs=3, type=int, default=(524288, 16, 1), metavar=("NODES", "LINKS", "SEED"))
    parser.add_argument("--vectors", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--damping", type=float, default=0.85)
    parser.add_argument("--core", type=int, help="compute on this core alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    nodes, links, seed = options.generate
    if options.vectors < 1 or options.iterations < 1 or not 0.0 <= options.damping < 1.0:
        parser.error("--vectors and --iterations must be at least 1, --damping in 0 .. 1")
    if not 1 <= nodes < 2**31 or not 0 <= links <= 2**20 or not 0 <= seed < 2**63:
        parser.error("--generate wants NODES from 1, LINKS and SEED from 0")
    return options


def load(options):
    """The graph; ends the program in order on all ranks when it cannot be had on any."""
    graph, problem = None, None
    try:
        graph = read_matrix(options.matrix) if options.matrix else generate(*options.generate)
        if options.vectors > graph[0]:
            problem = f"{options.vectors} vectors are more than the graph has nodes"
    except (MatrixError, OSError) as error:
        problem = str(error)
    problems = [text for text in WORLD.allgather(problem) if text is not None]
    if problems:
        if WORLD.rank == 0:
            print(f"pagerank: {problems[0]}", file=sys.stderr)
        sys.exit(1)
    return graph


def main():
    """Reads or generates the graph, iterates, reports."""
    options = parse_options()
    share = Share(*load(options))
    if options.core is not None:
        # Binds the calling thread alone; threads that MPI_Init has started keep to the other cores.
        os.sched_setaffinity(0, {options.core})
    if not report(share, options, *iterate(share, options)):
        sys.exit(1)


if __name__ == "__main__":
    main()
