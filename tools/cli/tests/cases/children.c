/*
 * right: MPI_Init leaves the program no child, no SIGCHLD and no changed disposition or mask, also where SIGCHLD is
 * ignored, blocked or handled before; argv: ignore|handle|block|default
 */
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { COUNT = 50000, CALLS = 20 };

static volatile int received;

static void handle(int number)
{
    (void)number;
    received++;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

/* Wrong integers after some calls. */
static int wrong_integers(int rank, int ranks)
{
    int bad = 0;
    int *send = malloc(COUNT * sizeof *send), *receive = malloc((size_t)COUNT * ranks * sizeof *receive);
    for (int i = 0; i < COUNT; i++)
        send[i] = rank * COUNT + i;
    for (int call = 0; call < CALLS; call++)
        MPI_Allgather(send, COUNT, MPI_INT, receive, COUNT, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT * ranks; i++)
        bad += receive[i] != i;
    free(send);
    free(receive);
    return bad;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "default";
    int blocks = strcmp(how, "block") == 0;
    struct sigaction before, after;
    sigset_t set;
    memset(&before, 0, sizeof before);
    before.sa_handler = strcmp(how, "ignore") == 0 ? SIG_IGN : strcmp(how, "handle") == 0 ? handle : SIG_DFL;
    sigaction(SIGCHLD, &before, NULL);
    sigemptyset(&set);
    if (blocks) {
        sigaddset(&set, SIGCHLD);
        sigaddset(&set, SIGTERM);
        sigprocmask(SIG_BLOCK, &set, NULL);
    }
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int bad = wrong_integers(rank, ranks);
    errno = 0;
    pid_t child = waitpid(-1, NULL, WNOHANG);
    if (child != -1 || errno != ECHILD) {
        printf("rank %d: waitpid(-1) returns %d, errno %d\n", rank, (int)child, errno);
        bad++;
    }
    sigaction(SIGCHLD, NULL, &after);
    if (after.sa_handler != before.sa_handler) {
        printf("rank %d: the disposition has changed\n", rank);
        bad++;
    }
    sigprocmask(SIG_BLOCK, NULL, &set);
    bad += blocks && !(sigismember(&set, SIGCHLD) && sigismember(&set, SIGTERM));
    sigpending(&set);
    if (received != 0 || sigismember(&set, SIGCHLD)) {
        printf("rank %d: SIGCHLD came\n", rank);
        bad++;
    }
    printf("%s rank %d of %d\n", bad ? "FAIL" : "PASS", rank, ranks);
    MPI_Finalize();
    return bad != 0;
}
