/*
 * errors.c: outcomes of liboutboard as MPI error codes.
 *
 * One error class holds all codes. Each outcome has one code, made when it first occurs. The code's string is the
 * message of the latest failure, as MPI_Error_string has no other way to carry it.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "errors.h"
#include "library.h"

#define OUTCOMES 100 /* outboard.h: -1 .. -99 */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int error_class;
static int codes[OUTCOMES];

int error_code(int outcome, const char *message)
{
    if (outcome == OUTBOARD_OK)
        return MPI_SUCCESS;
    int slot = outcome < 0 && outcome > -OUTCOMES ? -outcome : -OUTBOARD_ERR_INTERNAL;
    int code = MPI_ERR_OTHER;
    pthread_mutex_lock(&lock);
    if (error_class == 0 && mpi.Add_error_class(&error_class) == MPI_SUCCESS)
        mpi.Add_error_string(error_class, "the offloaded collective failed");
    if (error_class != 0 && codes[slot] == 0 && mpi.Add_error_code(error_class, &codes[slot]) != MPI_SUCCESS)
        codes[slot] = 0;
    if (codes[slot] != 0) {
        char text[MPI_MAX_ERROR_STRING];
        snprintf(text, sizeof text, "outboard: %s", message);
        mpi.Add_error_string(codes[slot], text);
        code = codes[slot];
    }
    pthread_mutex_unlock(&lock);
    return code;
}

bool error_is_outcome(int code, int outcome)
{
    pthread_mutex_lock(&lock);
    bool same = code == codes[-outcome] && code != 0;
    pthread_mutex_unlock(&lock);
    return same;
}

/* Whether an error on the communicator ends the program. */
static bool is_fatal(MPI_Comm comm)
{
    MPI_Errhandler handler;
    if (mpi.Comm_get_errhandler(comm, &handler) != MPI_SUCCESS)
        return true;
    bool fatal = handler == MPI_ERRORS_ARE_FATAL;
    mpi.Errhandler_free(&handler);
    return fatal;
}

/* The launcher ends all ranks when it sees that one has died, and returns the status of that rank. The shim knows of
 * the death before, and must not put the status of an abort in its place. */
static void await_launcher(void)
{
    const struct timespec longest = {.tv_sec = 2};
    nanosleep(&longest, NULL);
}

int error_raise(MPI_Comm comm, int code)
{
    if (comm == MPI_COMM_NULL)
        comm = MPI_COMM_WORLD;
    bool lost = error_is_outcome(code, OUTBOARD_ERR_RANK_LOST) || error_is_outcome(code, OUTBOARD_ERR_PEER_LOST);
    if (lost && is_fatal(comm))
        await_launcher();
    mpi.Comm_call_errhandler(comm, code);
    return code;
}

int outcome_code(int outcome)
{
    char message[MPI_MAX_ERROR_STRING];
    if (outcome == OUTBOARD_OK)
        return MPI_SUCCESS;
    library_error_message(outcome, message, sizeof message);
    return error_code(outcome, message);
}
