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

/* Whether the MPI library's version string begins so. */
static bool version_begins(const char *beginning, char *version)
{
    int length;
    PMPI_Get_library_version(version, &length);
    return strncmp(version, beginning, strlen(beginning)) == 0;
}

static bool is_version_built_for(char *message, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], built[32];
    snprintf(built, sizeof built, "Open MPI v%d.%d.", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION);
    if (version_begins(built, version))
        return true;
    snprintf(message, bytes, "this shim was built for %sx, the program runs on %.40s; load the shim of that version",
             built, version);
    return false;
}

/* Handles of an MPI library other than the one the shim was built for are useless, so no agreement is possible. */
static bool is_open_mpi(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    if (version_begins("Open MPI v", version))
        return true;
    const char *rank = getenv("PMI_RANK");
    if (rank == NULL || strcmp(rank, "0") == 0)
        fprintf(stderr, "outboard: collectives run natively: the program runs on %.40s, and the shim is for Open MPI\n",
                version);
    return false;
}

/* True if every rank is ready; else `message` becomes the message of the lowest rank that is not. */
static bool all_ranks_ready(bool ready, char *message, size_t bytes)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
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

/* Attaches this rank and sets up memory, progress hook and keyval for its communicators. */
static bool set_up_rank(char *message, size_t bytes)
{
    if (!is_version_built_for(message, bytes) || !progress_engine_find(message, bytes) ||
        !library_load(message, bytes) || !library_attach(message, bytes))
        return false;
    set_up = memory_start() == MPI_SUCCESS && requests_start() == MPI_SUCCESS && communicators_start() == MPI_SUCCESS;
    if (set_up)
        return true;
    snprintf(message, bytes, "Open MPI refused a keyval or a progress hook; run natively with OUTBOARD_MPI=off");
    return false;
}

static void detach(void)
{
    if (set_up) {
        requests_stop();
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
    if (!is_open_mpi())
        return;
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
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
        PMPI_Barrier(MPI_COMM_WORLD);
        choice_stop();
        communicators_free_all();
        detach();
        hosts_free();
    }
    report_write();
    stats_free();
    numeric_locale_restore(numeric_locale);
}
