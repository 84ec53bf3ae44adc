/*
 * requests.h: offloaded collectives in flight, and the MPI requests that stand for them.
 */
#ifndef OUTBOARD_MPI_REQUESTS_H
#define OUTBOARD_MPI_REQUESTS_H

#include "mpi.h"
#include <stdatomic.h>
#include <stdbool.h>

#include "completion.h"
#include "outboard.h"
#include "unpack.h"

struct persistent;
struct posting;

/* ---- for all modules ---- */

int requests_start(void);
void requests_stop(void);
/* A communicator of this rank alone. */
MPI_Comm requests_self(void);
/* Completes the requests of collectives that have ended. */
void requests_collect(void);
/* Completes ended requests, and lets the MPI library look after its own messages. */
void requests_make_progress(void);
/* Sleeps until the offloaded requests of the list have ended, or one of them (WAIT_ANY). */
void requests_sleep_until(int count, const MPI_Request *requests, enum wait_kind wait_kind);
/* Raises MPI_ERR_REQUEST if the request is offloaded; else false. */
bool request_refuse_cancel(MPI_Request request);
/* Posts the call, or keeps it for later, and makes the MPI request that stands for it. */
int request_make(struct posting *posting, MPI_Request *request);
/* Whether any MPI request of the shim exists. */
bool requests_live(void);
/* The number of collectives in flight with an MPI request. */
int requests_in_flight(void);
/* Waits for a collective without an MPI request while MPI's own progress goes on. Returns an MPI error code. */
int request_wait_blocking(outboard_request *posted, struct unpack *unpack);
/* Ends collectives in flight on the communicator, or on all communicators (MPI_COMM_NULL). Requests forget a named
 * communicator. */
void requests_drain(MPI_Comm comm);
/* The number of collectives that have ended. */
unsigned requests_ended(void);
/* Waits until more than `ended` collectives have ended; false if none is in flight. */
bool requests_wait_past(unsigned ended);

/* ---- one collective and the MPI request that stands for it, for requests.c and persistent.c ---- */

struct op {
    MPI_Request request;
    atomic_int holders; /* the MPI request, and the collective in flight; the last one frees */
    outboard_request *posted;
    MPI_Comm comm; /* MPI_COMM_NULL once the communicator is freed */
    struct unpack unpack;
    bool claimed;
    bool in_flight;
    atomic_bool active; /* false for a persistent request from its completion to its next start */
    atomic_bool ended;
    int outcome; /* the result of liboutboard */
    int code;    /* the error of MPI if moving the bytes failed */
    char message[MPI_MAX_ERROR_STRING];
    struct persistent *persistent; /* for a persistent request, else NULL */
    struct op *next_in_flight;
    struct op *next_in_bucket;
};

/* NULL if the request is not the shim's. */
struct op *op_of(MPI_Request request);
/* Registers the request as the shim's, and unregisters it. */
void op_register(struct op *op);
void op_unregister(struct op *op);
/* The MPI error code of a collective that has ended. */
int op_failure(const struct op *op);
/* Frees `op` and what belongs to it if this was the last holder. */
void op_release(struct op *op);
/* Makes the caller a holder of `op`, whose collective is to be posted later. */
void op_keep(struct op *op);
/* Ends `op` with this error of MPI: its collective could not be posted. */
void op_end_unposted(struct op *op, int code);
/* Puts a collective of `op` in flight, which then is a holder. */
void op_put_in_flight(struct op *op, const struct posting *posting);

#endif
