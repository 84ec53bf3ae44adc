/* right: a rank that waits in a collective takes part in messages that others await before they call it */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES = 200, BYTES = 20000, COLLECTIVE = 1 << 20 };

static int bad;

static void play(int rank, int nonblocking)
{
    static char sent[BYTES], received[MESSAGES][BYTES], block[COLLECTIVE];
    MPI_Request requests[MESSAGES], collective;
    for (int i = 0; rank == 1 && i < MESSAGES; i++)
        MPI_Irecv(received[i], BYTES, MPI_BYTE, 0, 7, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; rank == 0 && i < MESSAGES; i++) {
        memset(sent, i, sizeof sent);
        MPI_Ssend(sent, BYTES, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
    }
    if (nonblocking) {
        MPI_Ibcast(block, COLLECTIVE, MPI_BYTE, 0, MPI_COMM_WORLD, &collective);
        MPI_Wait(&collective, MPI_STATUS_IGNORE);
    } else {
        MPI_Bcast(block, COLLECTIVE, MPI_BYTE, 0, MPI_COMM_WORLD);
    }
    if (rank == 1)
        MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; rank == 1 && i < MESSAGES; i++)
        for (int at = 0; at < BYTES; at++)
            bad += received[i][at] != (char)i;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    play(rank, 0);
    play(rank, 1);
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    MPI_Finalize();
    return bad != 0;
}
