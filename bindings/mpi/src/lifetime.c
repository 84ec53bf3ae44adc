/*
 * lifetime.c: the shim's start after MPI_Init and its end before MPI_Finalize.
 *
 * All ranks agree in MPI_Init whether the shim is used: it is used on all ranks of MPI_COMM_WORLD or on none. A rank
 * that lacks something makes all ranks run natively, and rank 0 prints the reason once.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lifetime.h"
#include "choice.h"
#include "communicators.h"
#include "groups.h"
#include "hosts.h"
#include "library.h"
#include "memory.h"
#include "operators.h"
#include "report.h"
#include "requests.h"
#include "shim.h"
#include "stats.h"
#include "tree.h"

/* Memory, requests and communicators have been started on this rank. */
static bool set_up;

/* A locale in which numbers in files have a decimal point, whatever the program's locale. */
struct numeric_locale {
    locale_t c_locale, previous;
};

static struct numeric_locale numeric_locale_set(void)
{
    locale_t c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return (struct numeric_locale){c_locale, uselocale(c_locale)};
}

static void numeric_locale_restore(struct numeric_locale numeric_locale)
{
    uselocale(numeric_locale.previous);
    if (numeric_locale.c_locale != (locale_t)0)
        freelocale(numeric_locale.c_locale);
}

/* True if every rank is ready; else `message` becomes the message of the lowest rank that is not. */
static bool all_ranks_ready(bool ready, char *message, size_t bytes)
{
    int rank;
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    int first = tree_minimum(ready ? INT_MAX : rank);
    if (first == INT_MAX)
        return true;
    tree_send_to_root(message, bytes, first);
    tree_broadcast(message, bytes);
    message[bytes - 1] = '\0';
    if (rank == 0 && message[0] != '\0')
        fprintf(stderr, "outboard: collectives run natively; rank %d says: %s\n", first, message);
    return false;
}

static bool switched_off(void)
{
    const char *setting = getenv("OUTBOARD_MPI");
    return setting != NULL && strcmp(setting, "off") == 0;
}

/* Attaches this rank and sets up memory, requests and keyval for its communicators. */
static bool set_up_rank(char *message, size_t bytes)
{
    if (!library_load(message, bytes) || !library_attach(message, bytes))
        return false;
    set_up = memory_start() == MPI_SUCCESS && requests_start() == MPI_SUCCESS && communicators_start() == MPI_SUCCESS;
    if (set_up)
        return true;
    snprintf(message, bytes, "the MPI library refused a keyval or a communicator; run natively with OUTBOARD_MPI=off");
    return false;
}

static void detach(void)
{
    if (set_up) {
        requests_stop();
        own_operators_stop();
        memory_stop();
        communicators_stop();
    }
    set_up = false;
    library_detach();
}

void shim_start(void)
{
    int ranks;
    char message[SHIM_MESSAGE_BYTES] = "";
    bool same_build;
    mpi.Comm_size(MPI_COMM_WORLD, &ranks);
    bool off = switched_off(), native = choice_agree_mode(!off, &same_build);
    if (ranks < 2 || native) {
        report_start(native ? "OUTBOARD_CHOICE=native" : "one rank");
        return;
    }
    /* A rank is switched off: no warning, but all ranks must agree, whichever ranks have the variable. */
    if (!off && !same_build)
        snprintf(message, sizeof message,
                 "the shim here is another build than that of rank 0; install one on all hosts");
    bool ready = !off && same_build && set_up_rank(message, sizeof message);
    if (!all_ranks_ready(ready, message, sizeof message)) {
        detach();
        report_start(message[0] != '\0' ? message : "OUTBOARD_MPI=off");
        return;
    }
    hosts_find();
    report_start(NULL);
    struct numeric_locale numeric_locale = numeric_locale_set();
    choice_start();
    numeric_locale_restore(numeric_locale);
    struct group *world = group_of_call(MPI_COMM_WORLD);
    if (group_eligible(world))
        group_make(world);
}

void shim_stop(void)
{
    struct numeric_locale numeric_locale = numeric_locale_set();
    if (library_context() != NULL) {
        requests_drain(MPI_COMM_NULL);
        /* No rank detaches while another still waits for a collective. */
        mpi.Barrier(MPI_COMM_WORLD);
        choice_stop();
        communicators_free_all();
        detach();
        hosts_free();
    }
    report_write();
    stats_free();
    numeric_locale_restore(numeric_locale);
}
