/*
 * outboard.h: the C interface of Outboard, an engine for offloaded collective communication.
 *
 * A rank attaches to the service process of its host, makes groups with other ranks, and posts collectives. Posting
 * returns at once, the service process carries the collective out, and the rank tests or waits.
 *
 * Threads: every function may be called from any thread. A request belongs to one thread at a time.
 * Fork: a forked child owns nothing of its attached parent. In the child, every call with a handle of the parent
 * returns OUTBOARD_ERR_FORKED.
 * Errors: 0 is success; errors are negative and grouped by what failed. outboard_last_error() returns the message.
 *
 * The smallest program, examples/allgather.c: every rank contributes one number and receives the numbers of all ranks.
 */
// #include <outboard.h>
// #include <stdint.h>
// #include <stdio.h>
// #include <stdlib.h>
//
// static void check(int code)
// {
//     if (code == OUTBOARD_OK)
//         return;
//     fprintf(stderr, "%s\n", outboard_last_error());
//     exit(1);
// }
//
// int main(void)
// {
//     outboard_context *context;
//     outboard_group *world;
//     outboard_request *request;
//     uint32_t rank, ranks;
//
//     check(outboard_init(&context, &world));
//     check(outboard_group_rank(world, &rank));
//     check(outboard_group_size(world, &ranks));
//     uint64_t mine = rank * rank, *all = calloc(ranks, sizeof mine);
//     check(outboard_iallgather(world, &mine, all, sizeof mine, &request));
//     /* The service process gathers; the rank computes here. */
//     check(outboard_wait(request, -1, NULL));
//     for (uint32_t i = 0; rank == 0 && i < ranks; i++)
//         printf("rank %u sent %lu\n", i, (unsigned long)all[i]);
//     check(outboard_request_free(request));
//     check(outboard_group_destroy(world));
//     return outboard_detach(context);
// }
#ifndef OUTBOARD_H
#define OUTBOARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTBOARD_ABI_VERSION 1

/* Success. */
#define OUTBOARD_OK 0
/* -1 .. -19: the call was wrong; nothing happened. */
#define OUTBOARD_ERR_ARGUMENT (-1)   /* an argument is out of range or NULL */
#define OUTBOARD_ERR_FORKED (-2)     /* the handle belongs to the parent process */
#define OUTBOARD_ERR_BUSY (-3)       /* the object still has requests in flight, or groups */
/* -20 .. -39: this host: the service process, shared memory, access to memory. */
#define OUTBOARD_ERR_NO_SERVICE (-20) /* no service process answers at the socket */
#define OUTBOARD_ERR_VERSION (-21)    /* service process and library speak different versions */
#define OUTBOARD_ERR_SERVICE_LOST (-22) /* the service process of this host died */
#define OUTBOARD_ERR_RESOURCE (-23)   /* memory, descriptors or quota exhausted */
#define OUTBOARD_ERR_MEMORY (-24)     /* a buffer cannot be accessed */
/* -40 .. -59: another rank. */
#define OUTBOARD_ERR_RANK_LOST (-40)  /* a rank of the group died or left */
#define OUTBOARD_ERR_MISMATCH (-41)   /* ranks disagree on kind, size or configuration */
#define OUTBOARD_ERR_DEADLINE (-42)   /* a deadline, of calls or of making a group, has passed */
/* -60 .. -79: another host. */
#define OUTBOARD_ERR_PEER_LOST (-60)  /* a service process of the group died or its host stopped answering */
/* -80 .. -99: the protocol. */
#define OUTBOARD_ERR_PROTOCOL (-80)   /* a peer sent what the protocol does not allow */
#define OUTBOARD_ERR_INTERNAL (-99)   /* a defect of Outboard; please report */

/* Marks the contribution as already in its place in the receive buffer, as MPI_IN_PLACE does. */
#define OUTBOARD_IN_PLACE ((const void *)-1)

typedef struct outboard_context outboard_context;
typedef struct outboard_group outboard_group;
typedef struct outboard_request outboard_request;
typedef struct outboard_recorder outboard_recorder;
typedef struct outboard_recorded outboard_recorded;

/* The version of the interface that the library implements: the value of OUTBOARD_ABI_VERSION at its build. */
int outboard_abi_version(void);

/*
 * Attaches the calling process to the service process of its host. socket_path NULL means the environment variable
 * OUTBOARD_SOCKET. If the path is a list separated by colons, the rank takes the entry at index local rank modulo
 * number of entries. The local rank is OUTBOARD_LOCAL_RANK, else from the launcher. If no path is given, the rank
 * tries the job's own socket, then the user's ($XDG_RUNTIME_DIR/outboard/outboardd.sock). If neither answers, the
 * first rank of the job starts outboardd for the job, unless OUTBOARD_DAEMON=off; that process ends with the job's
 * last rank. OUTBOARD_SERVICE_PROCESSES=N or auto starts several. OUTBOARD_OUTBOARDD names the program to start, else
 * the rank starts the outboardd beside this library. A process may attach once; attaching again returns the same
 * context and counts one more attachment.
 */
int outboard_attach(const char *socket_path, outboard_context **context);
/*
 * Attaches as outboard_attach(NULL), then makes the group of all ranks of the job as outboard_group_world. A
 * failure leaves nothing behind. To end, call outboard_group_destroy(world), then outboard_detach(context).
 */
int outboard_init(outboard_context **context, outboard_group **world);
/* Ends one attachment of the context. Fails with OUTBOARD_ERR_BUSY while groups exist. */
int outboard_detach(outboard_context *context);

/*
 * Making a group takes two steps, with the program's own allgather between them. Every member writes an offer, all
 * members receive the offers of all members in rank order, and every member creates the group. Creation is
 * collective and blocks until the service processes of all members agree. OUTBOARD_ERR_MISMATCH names the differing
 * configurations. OUTBOARD_ERR_DEADLINE names a rank that has not requested the group within 30 s (outboardd
 * --group-timeout). Offers have a fixed size.
 */
#define OUTBOARD_OFFER_BYTES 1024
int outboard_group_offer(outboard_context *context, void *offer);
int outboard_group_create(outboard_context *context, const void *offers, uint32_t ranks, uint32_t rank,
                          outboard_group **group);
/* Makes the group of all ranks of the job. The ranks find one another through the PMIx server of mpirun or srun, or
 * by the variables of Slurm or PyTorch (at MASTER_PORT + 1). Otherwise OUTBOARD_RENDEZVOUS is HOST:PORT, at which
 * rank 0 listens. Rank and number of ranks are then OUTBOARD_RANK and OUTBOARD_WORLD_SIZE, or the variables of
 * Open MPI or PMI. OUTBOARD_ERR_ARGUMENT names the variable to set. If hosts share no home, OUTBOARD_TOKEN or
 * OUTBOARD_TOKEN_FILE gives all ranks one secret. */
int outboard_group_world(outboard_context *context, outboard_group **group);
/* Local. Waits for the group's requests in flight; afterwards all buffers belong to the program again. Requests
 * that the program holds keep their results. */
int outboard_group_destroy(outboard_group *group);
/*
 * Without a deadline (the default) a rank may call at any time. With a deadline, a collective that this rank posts
 * from now on fails on all ranks with OUTBOARD_ERR_DEADLINE if the collective has not ended `seconds` later. The
 * message names the ranks that had not called and their last calls, and the group cannot be used any more. 0 removes
 * the deadline. The call is local; deadlines are best equal on all ranks. New groups have the deadline of the
 * environment variable OUTBOARD_DEADLINE (seconds).
 */
int outboard_group_deadline(outboard_group *group, double seconds);
int outboard_group_rank(const outboard_group *group, uint32_t *rank);
int outboard_group_size(const outboard_group *group, uint32_t *ranks);
/* Returns 1 if the group's configuration offloads an allgather of this size, 0 if the caller should run its own. The
 * result depends only on the agreed configuration and the argument, so the result is equal on all ranks. */
int outboard_group_offloads_allgather(const outboard_group *group, uint64_t bytes_per_rank);

/*
 * Posts an allgather: `send` holds bytes_per_rank bytes (or is OUTBOARD_IN_PLACE), `receive` bytes_per_rank * ranks.
 * Never blocks. Both buffers belong to Outboard until the request completes.
 */
int outboard_iallgather(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank,
                        outboard_request **request);

/* Returns 1 if the group's configuration offloads a broadcast of this size, else 0; equal on all ranks. */
int outboard_group_offloads_broadcast(const outboard_group *group, uint64_t bytes);

/*
 * Posts a broadcast: `bytes` bytes at `buffer` of rank `root` go to `buffer` of all other ranks. All ranks pass the
 * same bytes and root. Never blocks; a rank that posts late delays only itself, unless it is the root. The buffer
 * belongs to Outboard until the request completes.
 */
int outboard_ibroadcast(outboard_group *group, void *buffer, uint64_t bytes, uint32_t root,
                        outboard_request **request);

/* Returns 1 if the group's configuration offloads an allgather whose blocks have total_bytes together, else 0; equal on
 * all ranks. */
int outboard_group_offloads_allgatherv(const outboard_group *group, uint64_t total_bytes);

/*
 * Posts an allgather of blocks of different sizes: `send` holds bytes[rank] bytes (or is OUTBOARD_IN_PLACE), and
 * the block of rank i goes to receive + offsets[i]. All ranks pass the same bytes, else the request fails with
 * OUTBOARD_ERR_MISMATCH; each rank passes its own offsets. Lists have one entry for every rank and are read before
 * the call returns. The blocks belong to Outboard until the request completes; the gaps between them do not.
 */
int outboard_iallgatherv(outboard_group *group, const void *send, void *receive, const uint64_t *bytes,
                         const uint64_t *offsets, outboard_request **request);

/* Returns 1 if the group's configuration offloads an alltoall of blocks of this size, else 0; equal on all ranks. */
int outboard_group_offloads_alltoall(const outboard_group *group, uint64_t bytes_per_pair);
/* Returns 1 if the group offloads alltoallvs. Sizes do not matter, because no rank knows all sizes. */
int outboard_group_offloads_alltoallv(const outboard_group *group);

/*
 * Posts an alltoall: block i of bytes_per_pair bytes at `send` goes to rank i, and rank i's block for this rank
 * goes to block i of `receive`. Never blocks; a rank that posts late delays only ranks that wait for its blocks.
 * Both buffers belong to Outboard until the request completes.
 */
int outboard_ialltoall(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_pair,
                       outboard_request **request);

/*
 * Posts an alltoallv: the block for rank i is send_bytes[i] bytes at send + send_offsets[i]; the block of rank i
 * goes to receive + receive_offsets[i]. receive_bytes[i] must equal the bytes that rank i sends to this rank: if both
 * are above 0 and differ, the request fails on all ranks with OUTBOARD_ERR_MISMATCH. Each list has one entry for every
 * rank and is read before the call returns. The blocks belong to Outboard until the request completes; the gaps
 * between them do not.
 */
int outboard_ialltoallv(outboard_group *group, const void *send, const uint64_t *send_bytes,
                        const uint64_t *send_offsets, void *receive, const uint64_t *receive_bytes,
                        const uint64_t *receive_offsets, outboard_request **request);

/* Returns 1 if the group's configuration offloads a gather or scatter of blocks of this size, else 0; equal on all
 * ranks. For a gatherv or scatterv call outboard_group_offloads_alltoallv. */
int outboard_group_offloads_gather(const outboard_group *group, uint64_t bytes_per_rank);

/*
 * Posts a gather: bytes_per_rank bytes at `send` of every rank go to `receive` of rank `root`, in the order of
 * ranks. Other ranks' `receive` is ignored, and only the root may pass OUTBOARD_IN_PLACE as `send`. Never blocks. A
 * rank other than the root completes once its block has been read, even if other ranks have not called. All ranks
 * pass the same bytes and root. The buffers belong to Outboard until the request completes.
 */
int outboard_igather(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank, uint32_t root,
                     outboard_request **request);

/*
 * Posts a scatter: block i of bytes_per_rank bytes at `send` of rank `root` goes to `receive` of rank i. Other
 * ranks' `send` is ignored. Only the root may pass (void *)OUTBOARD_IN_PLACE as `receive`: its block then stays in
 * place. Otherwise the rules of outboard_igather apply, except that a rank waits only for the root.
 */
int outboard_iscatter(outboard_group *group, const void *send, void *receive, uint64_t bytes_per_rank, uint32_t root,
                      outboard_request **request);

/*
 * Posts a gather of blocks of different sizes: send_bytes at `send` of rank i go to receive + receive_offsets[i] of
 * rank `root`. The root's receive_bytes[i] must equal the send_bytes of rank i: if both are above 0 and differ, the
 * request fails with OUTBOARD_ERR_MISMATCH on the ranks that have not completed. Only the root passes lists; they have
 * one entry for every rank and are read before the call returns. send_bytes is ignored for a contribution in place.
 */
int outboard_igatherv(outboard_group *group, const void *send, uint64_t send_bytes, void *receive,
                      const uint64_t *receive_bytes, const uint64_t *receive_offsets, uint32_t root,
                      outboard_request **request);

/* Posts a scatter of blocks of different sizes: send_bytes[i] at send + send_offsets[i] of rank `root` go to
 * `receive` of rank i, which expects receive_bytes. Otherwise the rules of outboard_igatherv apply. */
int outboard_iscatterv(outboard_group *group, const void *send, const uint64_t *send_bytes,
                       const uint64_t *send_offsets, void *receive, uint64_t receive_bytes, uint32_t root,
                       outboard_request **request);

/*
 * Operators and elements of reductions. MPI's rules apply: integers wrap, and bitwise and logical operators are for
 * integers. Operators with location are only for pairs, minimum and maximum only for ordered numbers. Buffers hold
 * elements in the byte order of the machine, at any alignment.
 */
enum outboard_operator {
    OUTBOARD_SUM = 1,
    OUTBOARD_PRODUCT = 2,
    OUTBOARD_MINIMUM = 3,
    OUTBOARD_MAXIMUM = 4,
    OUTBOARD_MINIMUM_LOCATION = 5, /* among equal values the smaller index */
    OUTBOARD_MAXIMUM_LOCATION = 6,
    OUTBOARD_BIT_AND = 7,
    OUTBOARD_BIT_OR = 8,
    OUTBOARD_BIT_XOR = 9,
    OUTBOARD_LOGICAL_AND = 10,
    OUTBOARD_LOGICAL_OR = 11,
    OUTBOARD_LOGICAL_XOR = 12
};
enum outboard_element {
    OUTBOARD_I8 = 1,
    OUTBOARD_I16 = 2,
    OUTBOARD_I32 = 3,
    OUTBOARD_I64 = 4,
    OUTBOARD_U8 = 5,
    OUTBOARD_U16 = 6,
    OUTBOARD_U32 = 7,
    OUTBOARD_U64 = 8,
    OUTBOARD_F16 = 9,
    OUTBOARD_BF16 = 10,
    OUTBOARD_F32 = 11,
    OUTBOARD_F64 = 12,
    OUTBOARD_COMPLEX_F32 = 13,
    OUTBOARD_COMPLEX_F64 = 14,
    OUTBOARD_F32_INDEX = 15, /* struct { float value; int index; } */
    OUTBOARD_F64_INDEX = 16, /* struct { double value; int index; } */
    OUTBOARD_I64_INDEX = 17, /* struct { long value; int index; } */
    OUTBOARD_I32_INDEX = 18, /* struct { int value; int index; } */
    OUTBOARD_I16_INDEX = 19  /* struct { short value; int index; } */
};

/*
 * Operators of the program. Reductions accept the number in `op` in place of an enum outboard_operator, with `element`
 * 0: the operator knows the size of its elements. Make one operator for each kind of element, with equal functions on
 * all ranks; the library does not check whether the functions are equal.
 *
 * The function combines `count` pairs of elements, in[i] with inout[i], and leaves the results in `inout`, as a
 * function of MPI_Op_create does. Elements of `in` come from lower ranks than elements of `inout`. The function must
 * be associative and need not commute: contributions are combined from the left in the order of ranks, equally on
 * every run. A long contribution takes several calls of the function. Both vectors are memory of Outboard, at
 * multiples of element_bytes from a cache line's start.
 *
 * The service process gathers the contributions. The function runs in the rank itself, in the thread whose call of
 * outboard_test or outboard_wait finds the request complete. If the request was freed before, any later call that
 * posts, tests, waits or destroys the group runs the function. The function must not call this library and must return
 * normally. Several threads that test or wait may run the function at a time. No rank waits for the function of
 * another rank. Until the request completes the rank holds the contribution of each rank that takes part; for
 * reduce-scatters only the part for its own block. Without memory for these contributions the post fails with
 * OUTBOARD_ERR_RESOURCE.
 */
typedef void (*outboard_op_function)(const void *in, void *inout, size_t count, void *context);
int outboard_op_create(outboard_op_function function, size_t element_bytes, void *context, int *op);
/* Local. Fails with OUTBOARD_ERR_BUSY until calls of this library have seen the end of all requests with the operator.
 * Numbers of operators are never reused. */
int outboard_op_free(int op);

/* Returns 1 if the group offloads barriers. */
int outboard_group_offloads_barrier(const outboard_group *group);
/* Returns 1 if the group's configuration offloads reductions to which each rank contributes this many bytes, else 0;
 * equal on all ranks. */
int outboard_group_offloads_reduction(const outboard_group *group, uint64_t bytes);
/* The most bytes that each rank may contribute to a reduction. The limit is the scratch of this rank's service
 * process (outboardd --scratch-quota) and depends on the ranks that the process serves. The least limit of all ranks
 * applies to the group; a larger call fails with OUTBOARD_ERR_RESOURCE. */
int outboard_group_reduction_most(const outboard_group *group, uint64_t *bytes);

/* Posts a barrier: the request completes when all ranks have posted their barriers. Never blocks. */
int outboard_ibarrier(outboard_group *group, outboard_request **request);

/*
 * Post reductions: the vectors at `send` of all ranks are combined, element by element. All ranks pass the same
 * counts, operator, element and root, else the request fails with OUTBOARD_ERR_MISMATCH. The result has the same
 * bits on every run, whatever arrives first, and on all ranks that receive the same elements. If `send` is
 * OUTBOARD_IN_PLACE, the vector begins at `receive`, where the result goes. The functions never block; a rank that
 * posts late delays only ranks whose result contains its vector. Both buffers belong to Outboard until the request
 * completes. A post fails with OUTBOARD_ERR_RESOURCE if the vectors in flight would exceed the service process's
 * scratch (outboardd --scratch-quota), or its staging (--staging-quota) for ranks that have not called. `op` and
 * `element` are an enum outboard_operator and an enum outboard_element, or the number of a program's operator and 0.
 */
/* Combines `count` elements of each rank for rank `root`. Only the root may contribute in place, and other ranks'
 * `receive` is ignored. */
int outboard_ireduce(outboard_group *group, const void *send, void *receive, uint64_t count, int op, int element,
                     uint32_t root, outboard_request **request);
/* Combines `count` elements of each rank for all ranks. */
int outboard_iallreduce(outboard_group *group, const void *send, void *receive, uint64_t count, int op, int element,
                        outboard_request **request);
/* The vector is cut into a block of counts[i] elements for each rank i; each rank receives its own block. `counts`
 * has one entry for every rank and is read before the call returns. */
int outboard_ireduce_scatter(outboard_group *group, const void *send, void *receive, const uint64_t *counts, int op,
                             int element, outboard_request **request);
/* Works like outboard_ireduce_scatter, with equal blocks of `count` elements. */
int outboard_ireduce_scatter_block(outboard_group *group, const void *send, void *receive, uint64_t count, int op,
                                   int element, outboard_request **request);
/* Each rank contributes `count` elements; rank i receives the combined vectors of ranks 0 to i. */
int outboard_iscan(outboard_group *group, const void *send, void *receive, uint64_t count, int op, int element,
                   outboard_request **request);
/* Each rank contributes `count` elements; rank i receives the combined vectors of ranks 0 to i - 1, rank 0 nothing. */
int outboard_iexscan(outboard_group *group, const void *send, void *receive, uint64_t count, int op, int element,
                     outboard_request **request);

/*
 * Posts a message of `bytes` bytes at `buffer` to rank `to`, which receives it by naming this rank and `tag`. Never
 * blocks. The request completes when the program may use the buffer again. For small messages this is usually before
 * the receive, for large ones at the receive. The buffer belongs to Outboard until the request completes.
 */
int outboard_isend(outboard_group *group, uint32_t to, uint32_t tag, const void *buffer, uint64_t bytes,
                   outboard_request **request);
/*
 * Posts the receive of the next message that rank `from` sends to this rank with `tag`, of at most `bytes` bytes.
 * Messages with one source and tag are received in the order in which they were sent; there are no wildcards. A
 * longer message is lost, and only this request fails with OUTBOARD_ERR_MISMATCH. A shorter message leaves the rest
 * of the buffer unchanged. Deadlines do not apply to messages and recorded groups.
 */
int outboard_ireceive(outboard_group *group, uint32_t from, uint32_t tag, void *buffer, uint64_t bytes,
                      outboard_request **request);

/*
 * Recorded groups: a rank records sends, receives, copies, reductions and local barriers once, and then calls the
 * recording again and again. The caller owns a recorder until it is ended or discarded; one thread uses it at a time.
 * Recording itself does nothing and sends nothing.
 *
 * Operations between two barriers may be done in any order and at the same time. No operation may touch bytes that
 * another one writes. Within one call, this rank's n-th send of a tag to a rank matches that rank's n-th receive of
 * the tag from this rank. Send and receive must have equally many bytes, else the group fails with
 * OUTBOARD_ERR_MISMATCH.
 */
int outboard_record_begin(outboard_group *group, outboard_recorder **recorder);
int outboard_record_send(outboard_recorder *recorder, uint32_t to, uint32_t tag, const void *buffer, uint64_t bytes);
int outboard_record_receive(outboard_recorder *recorder, uint32_t from, uint32_t tag, void *buffer, uint64_t bytes);
/* Copies within this rank's memory, between pieces that do not overlap. */
int outboard_record_copy(outboard_recorder *recorder, const void *from, void *into, uint64_t bytes);
/* Combines `count` elements at `from` into the elements at `into`, the left operands, which are replaced by the
 * results. The pieces must not overlap, and `op` must not be an operator of the program. */
int outboard_record_reduce(outboard_recorder *recorder, const void *from, void *into, uint64_t count, int op,
                           int element);
/* Records a local barrier: operations recorded after the barrier start when all operations before it are done on this
 * rank. No other rank waits for the barrier. */
int outboard_record_barrier(outboard_recorder *recorder);
/*
 * Ends a recording, which the service process keeps. The recorder is gone, whatever is returned. All ranks that call
 * the recording end it in the same order among their recordings on the group. A rank without operations in the
 * recording ends an empty one. After an error this rank has no part in the recording.
 */
int outboard_record_end(outboard_recorder *recorder, outboard_recorded **recorded);
/* Discards a recorder. */
int outboard_record_discard(outboard_recorder *recorder);
/*
 * Runs the recorded operations once more. Never blocks. The n-th call of a recording matches the n-th calls of the
 * other ranks, whatever other calls are in between. Calls of one recording are done one after the other. All
 * recorded memory belongs to Outboard until the request completes.
 */
int outboard_recorded_call(outboard_recorded *recorded, outboard_request **request);
/* Forgets a recording, after waiting for its calls in flight; afterwards its memory belongs to the program again.
 * Local. Must precede the destruction of the group. */
int outboard_recorded_free(outboard_recorded *recorded);

/* Sets *done to 1 when the request has completed; the return value is then its result. The request stays valid. */
int outboard_test(outboard_request *request, int *done);
/* Sleeps until the request completes and returns its result; timeout_ms < 0 waits for ever. After a timeout *done
 * is 0 (done may be NULL if timeout_ms < 0). */
int outboard_wait(outboard_request *request, int timeout_ms, int *done);
/* Sleeps until at least one of the `count` requests (NULL entries skipped) has completed or timeout_ms has passed;
 * timeout_ms < 0 waits for ever. Returns OUTBOARD_OK in both cases, at once if there are no requests, and also if
 * the service process has died; outboard_test returns the results. All requests must belong to one context. */
int outboard_wait_some(outboard_request *const *requests, size_t count, int timeout_ms);
/* As outboard_wait_some, with the time in microseconds: for programs that must do something else in between. */
int outboard_wait_some_us(outboard_request *const *requests, size_t count, int timeout_us);
/* Frees the handle. The collective goes on; its buffers must stay valid until the collective has ended. */
int outboard_request_free(outboard_request *request);

/* Allocates memory that the service process maps directly; fastest for send and receive buffers. The memory is
 * page-aligned and has undefined content. A child of fork has a private copy of it. Below a limit on files, descriptors
 * or addresses that leaves no room for shared memory, the memory is plain, and slower. Memory that is not freed before
 * the detach stays mapped. Freed memory is kept for the next allocation of a similar size, within bounds. */
int outboard_alloc(outboard_context *context, size_t bytes, void **memory);
int outboard_dealloc(outboard_context *context, void *memory);

/* Returns the way in which the service process now accesses memory that does not come from outboard_alloc:
 * "cross-memory attach", "memory descriptor" or "staging". */
const char *outboard_memory_tier(const outboard_context *context);

/* Return the meaning of the code, and the message of the calling thread's last failure; never NULL. */
const char *outboard_strerror(int code);
const char *outboard_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
