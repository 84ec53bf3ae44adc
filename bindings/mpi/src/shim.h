/*
 * shim.h: declarations shared by the parts of the MPI shim.
 *
 * The shim is loaded before the MPI library (LD_PRELOAD). It passes collectives to the service process through
 * liboutboard, if that can carry them out and all members of the communicator have agreed. The shim calls MPI by PMPI_
 * names only. A profiling tool above the shim that calls PMPI_ names itself bypasses it: without MPI_Init the shim
 * does nothing at all.
 *
 * Invariants: whether a call is offloaded never depends on local state. It depends on agreements of the communicator's
 * members, the number of their calls, and arguments that MPI makes equal on all members. Nothing collective happens
 * inside a nonblocking call.
 */
#ifndef OUTBOARD_MPI_SHIM_H
#define OUTBOARD_MPI_SHIM_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "outboard.h"
#include "trials.h"

#define SHIM_MESSAGE_BYTES 512

struct call;
struct class;
struct group;

/* ---- library.c: liboutboard, loaded at run time ---- */

#define OUTBOARD_FUNCTIONS(X)                                                                                          \
    X(abi_version)                                                                                                     \
    X(attach)                                                                                                          \
    X(detach)                                                                                                          \
    X(group_offer)                                                                                                     \
    X(group_create)                                                                                                    \
    X(group_destroy)                                                                                                   \
    X(group_offloads_allgather)                                                                                        \
    X(iallgather)                                                                                                      \
    X(group_offloads_broadcast)                                                                                        \
    X(ibroadcast)                                                                                                      \
    X(group_offloads_allgatherv)                                                                                       \
    X(iallgatherv)                                                                                                     \
    X(group_offloads_alltoall)                                                                                         \
    X(ialltoall)                                                                                                       \
    X(group_offloads_alltoallv)                                                                                        \
    X(ialltoallv)                                                                                                      \
    X(group_offloads_gather)                                                                                           \
    X(igather)                                                                                                         \
    X(iscatter)                                                                                                        \
    X(igatherv)                                                                                                        \
    X(iscatterv)                                                                                                       \
    X(group_offloads_barrier)                                                                                          \
    X(ibarrier)                                                                                                        \
    X(group_offloads_reduction)                                                                                        \
    X(group_reduction_most)                                                                                            \
    X(ireduce)                                                                                                         \
    X(iallreduce)                                                                                                      \
    X(ireduce_scatter)                                                                                                 \
    X(ireduce_scatter_block)                                                                                           \
    X(iscan)                                                                                                           \
    X(iexscan)                                                                                                         \
    X(test)                                                                                                            \
    X(wait)                                                                                                            \
    X(wait_some)                                                                                                       \
    X(request_free)                                                                                                    \
    X(alloc)                                                                                                           \
    X(dealloc)                                                                                                         \
    X(strerror)                                                                                                        \
    X(last_error)

struct outboard_library {
#define FIELD(name) __typeof__(outboard_##name) *name;
    OUTBOARD_FUNCTIONS(FIELD)
#undef FIELD
};

/* Valid after library_load() returned true. */
extern struct outboard_library outboard;
/* False leaves the reason in `message`. */
bool library_load(char *message, size_t message_bytes);
/* Attaches this process to its service process; false leaves the reason in `message`. */
bool library_attach(char *message, size_t message_bytes);
void library_detach(void);
/* The attachment, NULL while all calls pass through. */
outboard_context *library_context(void);
/* Writes the meaning of the outcome, then the message of this thread's last failing call. */
void library_error_message(int outcome, char *message, size_t bytes);

/* Open MPI's own progress engine: exported by libopen-pal, not declared by mpi.h. */
struct progress_engine {
    void (*progress)(void);
    int (*attach)(int (*hook)(void));
    int (*remove)(int (*hook)(void));
};
extern struct progress_engine engine;
bool progress_engine_find(char *message, size_t message_bytes);

/* ---- the collectives ---- */

/* Collectives that may be offloaded: their names, their struct method, and their parameters in the words of
 * interposed.h. */
#define COLLECTIVES(X)                                                                                                 \
    X(Allgather, allgather, ALLGATHER, allgather_method, EVEN, EVEN, ALL)                                              \
    X(Allgatherv, allgatherv, ALLGATHERV, allgatherv_method, EVEN, UNEVEN, ALL)                                        \
    X(Bcast, bcast, BCAST, broadcast_method, NOTHING, EVEN, ROOT)                                                      \
    X(Alltoall, alltoall, ALLTOALL, alltoall_method, EVEN, EVEN, ALL)                                                  \
    X(Alltoallv, alltoallv, ALLTOALLV, alltoallv_method, UNEVEN, UNEVEN, ALL)                                          \
    X(Gather, gather, GATHER, rooted_method, EVEN, EVEN, ROOT)                                                         \
    X(Gatherv, gatherv, GATHERV, rooted_uneven_method, EVEN, UNEVEN, ROOT)                                             \
    X(Scatter, scatter, SCATTER, rooted_method, EVEN, EVEN, ROOT)                                                      \
    X(Scatterv, scatterv, SCATTERV, rooted_uneven_method, UNEVEN, EVEN, ROOT)                                          \
    X(Barrier, barrier, BARRIER, barrier_method, NOTHING, NOTHING, ALL)                                                \
    X(Reduce, reduce, REDUCE, reduction_method, VECTOR, EVEN, OP_ROOT)                                                 \
    X(Allreduce, allreduce, ALLREDUCE, reduction_method, VECTOR, EVEN, OP)                                             \
    X(Reduce_scatter, reduce_scatter, REDUCE_SCATTER, reduction_method, VECTOR, PART, OP)                              \
    X(Reduce_scatter_block, reduce_scatter_block, REDUCE_SCATTER_BLOCK, reduction_method, VECTOR, EVEN, OP)            \
    X(Scan, scan, SCAN, reduction_method, VECTOR, EVEN, OP)                                                            \
    X(Exscan, exscan, EXSCAN, reduction_method, VECTOR, EVEN, OP)

enum collective {
#define NUMBER(Name, lower, ...) COLLECTIVE_##lower,
    COLLECTIVES(NUMBER)
#undef NUMBER
    COLLECTIVES_KNOWN
};

/* The form of the MPI call; forms are counted separately. */
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };

/* Pointer arithmetic that may leave the object, as MPI_BOTTOM and negative lower bounds do. */
static inline void *address_plus(const void *address, int64_t by)
{
    return (void *)((uintptr_t)address + (uintptr_t)by);
}

/* ---- tree.c: messages among the ranks of MPI_COMM_WORLD in MPI_Init ---- */

/* Rank 0 receives the elements of all ranks, each in its place. Other ranks receive an undefined part of them. */
void tree_gather(void *all, size_t each);
void tree_broadcast(void *bytes, size_t count);
/* The least of all ranks' numbers. */
int tree_minimum(int mine);
/* Sends bytes from rank `from` to rank 0. */
void tree_send_to_root(void *bytes, size_t count, int from);

/* ---- hosts.c: the hosts of the ranks ---- */

/* The distribution of a communicator's ranks over hosts; equal on all of them. */
struct placement {
    int hosts;
    int ranks_per_host; /* on the host with the most */
};

/* Collective over MPI_COMM_WORLD, in MPI_Init. */
void hosts_find(void);
void hosts_free(void);
/* Whether the rank of MPI_COMM_WORLD is the first on its host. */
bool hosts_first(int rank);
/* The name of the rank's host; only on rank 0. */
const char *hosts_name(int rank);
/* Local. False if a rank of the communicator is of another world. */
bool placement_of(MPI_Comm comm, int ranks, struct placement *placement);
static inline bool same_placement(const struct placement *one, const struct placement *other)
{
    return one->hosts == other->hosts && one->ranks_per_host == other->ranks_per_host;
}

/* ---- classes.c: the classes of calls ---- */

/* The bytes of calls whose bytes no rank knows alone. */
#define BYTES_UNKNOWN UINT64_MAX
/* Classes by size: the bits of the number of bytes, 0 to 64, and one for unknown bytes. */
#define SIZE_UNKNOWN 65
#define SIZES (SIZE_UNKNOWN + 1)
#define CLASS_KEYS (COLLECTIVES_KNOWN * FORMS * SIZES)

/* A collective, a form and a size. */
static inline unsigned class_key(enum collective collective, enum form form, unsigned size)
{
    return ((unsigned)collective * FORMS + (unsigned)form) * SIZES + size;
}
static inline enum collective collective_of(unsigned key)
{
    return key / SIZES / FORMS;
}
static inline enum form form_of(unsigned key)
{
    return key / SIZES % FORMS;
}
static inline unsigned size_of(unsigned key)
{
    return key % SIZES;
}

extern const char *const collective_names[COLLECTIVES_KNOWN], *const form_names[FORMS];

/* Calls of one class on one communicator. */
struct class {
    unsigned key;
    struct trial trial;
    struct class_stats *stats;
    struct class *next;
};

/* The choices of a communicator's members so far; equal on all of them, except the times in trials. */
struct choices {
    struct class *classes;          /* in the order of their first calls */
    struct class *latest;
    int awaiting_agreement;         /* classes that wait for an agreement */
    struct class *in_trial;         /* the class that began its trial last */
    uint64_t calls, trial_began_at; /* calls of all classes so far, and at the start of the last trial */
    uint64_t no_trial_before;       /* calls of all classes before which no class requests a trial */
    unsigned groupless;             /* nonblocking calls that only the lack of a group kept native */
    uint64_t digest;                /* of the paths of all calls */
};

/* One call, from the choice of its path to its end. */
struct route {
    struct group *group; /* NULL, as the class, if there is nothing to choose */
    struct class *class;
    enum path path;
    struct trial_turn trial_turn;
    uint64_t bytes;
    bool timed;
    double began;
};

/* NULL if the communicator has no calls of this class. */
struct class *class_find(const struct choices *choices, unsigned key);
void class_append(struct choices *choices, struct class *class);
void choices_free(struct choices *choices);
/* Fills in this rank's entries of the vector on which the members agree; `elapsed` is the time since MPI_Init. */
void class_fill_vector(struct class *class, double elapsed, double *vector);
void class_apply_agreement(struct class *class, const double *vector);
/* Records the time of a call inside MPI, and in a trial the time that its caller has lost outside. */
void class_record_time(struct class *class, enum path path, const struct trial_turn *turn, double seconds, double lost);

/* ---- choice.c: natively or offloaded ---- */

/* Reads OUTBOARD_CHOICE of rank 0 if it is `enabled`. Collective over MPI_COMM_WORLD. True if every rank should run
 * natively. Sets whether rank 0 has a shim of the same sources. */
bool choice_agree_mode(bool enabled, bool *same_build);
/* Called once all ranks are attached, and before communicators go; both collective over MPI_COMM_WORLD. */
void choice_start(void);
void choice_stop(void);
/* Called for a new communicator. Makes its group if every call is offloaded from the start; else does nothing. */
void communicator_made(MPI_Comm comm);
/* Chooses the path of a call, equally on all members. True for OFFLOADED: then the group is GROUPED. */
bool choice_offloads(const struct call *call, enum form form, struct route *route);
/* A call was passed through. `made` is its request, MPI_REQUEST_NULL if it is not nonblocking. */
void choice_time_passed(const struct route *route, enum form form, MPI_Request made);
static inline void choice_record_passed(const struct route *route, enum collective collective, enum form form,
                                        MPI_Request made);

/* ---- timings.c: timed nonblocking calls, until they complete ---- */

/* Registers the request of this call, which took `seconds` to post. */
void timings_add(MPI_Request request, const struct route *route, double seconds);
/* Whether any request is timed, and whether any of these is; called before they are tested or waited for. */
bool timings_any(void);
bool timings_contain(int count, const MPI_Request *requests);
/* Records that the request has completed in a call that took `seconds`. */
void timings_complete(MPI_Request request, double seconds);
void timings_remove(MPI_Request request);
void timings_remove_group(const struct group *group);

/* ---- stats.c: counts and times by class and placement ---- */

struct class_stats {
    unsigned key;
    struct placement placement;
    atomic_ullong calls[PATHS];
    atomic_ullong nanoseconds[PATHS]; /* inside MPI */
    enum path path;                   /* the latest choice */
    enum reason reason;
    struct estimate estimate;         /* as last agreed */
    bool tried;                       /* a trial has begun in this run */
    struct class_stats *next;
};

/* Returns the statistics of a class, which are added if they are missing; NULL without memory. */
struct class_stats *stats_of(unsigned key, const struct placement *placement);
void stats_count_call(struct class_stats *stats, enum path path);
void stats_add_time(struct class_stats *stats, enum path path, double seconds);
void stats_set_choice(struct class_stats *stats, const struct trial *trial);
/* The first in the list of all statistics, in the order in which they were added. */
const struct class_stats *stats_first(void);
/* Seconds that offloading has saved according to trials; negative if it has cost more. */
double stats_saved_seconds(void);
void stats_free(void);

/* ---- tuning_cache.c: results of earlier runs on this cluster ---- */

struct tuning_entry {
    unsigned key;
    struct placement placement;
    struct estimate estimate;
    uint64_t calls;
};

/* Collective over MPI_COMM_WORLD: rank 0 reads the file for all. */
void tuning_cache_read(void);
/* NULL if there is no result. */
const struct tuning_entry *tuning_cache_find(unsigned key, const struct placement *placement);
/* On rank 0: adds the results of this run to the file, if this run tried anything. */
void tuning_cache_write(void);
void tuning_cache_free(void);

/* ---- lifetime.c: start and end of the shim ---- */

/* After MPI_Init (collective over MPI_COMM_WORLD) and before MPI_Finalize. */
void shim_start(void);
void shim_stop(void);

/* ---- groups.c: groups of communicators ---- */

enum group_state {
    NEW,       /* its placement is not computed yet */
    GROUPLESS, /* it may have a group and has none yet */
    GROUPED,
    REFUSED    /* it never has a group: all its calls pass through */
};

/* The shim's state of a communicator. Calls on one communicator are in order, so its fields need no lock. */
struct group {
    MPI_Comm comm;
    enum group_state state;
    outboard_group *members;    /* while GROUPED */
    int reduced_bits;           /* of the bytes of a reduction that fits the scratch of all service processes */
    int ranks;
    int rank;
    struct placement placement; /* unless NEW or REFUSED */
    struct choices choices;
};

/* Ends the program: a rank that does not know a communicator would choose otherwise than the other ranks. */
void group_out_of_memory(int ranks);
/* Computes the communicator's placement if it is missing; false if it is REFUSED. Local. */
bool group_eligible(struct group *group);
/* Collective over the communicator. Afterwards the group is GROUPED or REFUSED, equally on all members. */
void group_make(struct group *group);
/* A separate group for a persistent request, made as by group_make(): GROUPED or REFUSED. */
struct group *group_make_separate(const struct group *like);
/* Local. The request is gone and has nothing in flight. */
void group_drop(struct group *own);
/* Destroys the group, if there is one; from then on it is REFUSED. */
void group_dissolve(struct group *group);

/* ---- communicators.c: communicators from the first collective on them until they are freed ---- */

/* Before communicators enter the table, and after all have left it. */
int communicators_start(void);
void communicators_stop(void);
/* Frees the groups of all communicators. */
void communicators_free_all(void);
/* The group for a call; enters the communicator if it is not in the table. NULL while all calls pass through. Local. */
struct group *group_of_call(MPI_Comm comm);
/* Before the communicator is freed: ends collectives in flight on it. The result is for communicator_end_free(). */
MPI_Comm communicator_begin_free(MPI_Comm comm);
void communicator_end_free(MPI_Comm previous);

/* ---- communicator_table.c: the table of communicators ---- */

/* NULL when the communicator is not in the table. Takes no lock. */
struct group *group_of(MPI_Comm comm);
/* False without memory. */
bool communicator_table_add(struct group *group);
void communicator_table_remove(MPI_Comm comm);
int communicator_table_count(void);
/* Any communicator that is left, or NULL. */
struct group *communicator_table_any(void);
void communicator_table_free(void);

/* ---- memory.c: datatypes as bytes, bounce buffers ---- */

struct shape {
    uint64_t size;   /* bytes of data of one element */
    int64_t true_lb; /* offset of its first byte from the buffer address */
    bool contiguous; /* its bytes lie in memory without gaps and in the order of MPI_Pack */
    bool no_gaps;    /* contiguous, and elements follow one another without gaps */
};

int shape_of(MPI_Datatype type, struct shape *shape);
/* Packs elements, or unpacks them: `packed` holds count * shape->size bytes. Returns an MPI error code. */
int convert_elements(bool packs, void *elements, uint64_t count, MPI_Datatype type, const struct shape *shape,
                     void *packed);
int memory_start(void);
void memory_stop(void);
/* A buffer of at least this many bytes, NULL if there is none. */
void *bounce_acquire(size_t bytes);
void bounce_release(void *bounce);

/* ---- scratch.c: large blocks that the shim needs for a short time ---- */

/* Zeroed memory at a multiple of 64; NULL if there is none. */
void *scratch_allocate(size_t bytes);
/* NULL is ignored. */
void scratch_free(void *memory);

/* ---- allocation.c: memory of MPI_Alloc_mem ---- */

/* Memory shared with the service process; NULL if the MPI library should allocate. */
void *allocation_make(MPI_Aint size);
/* Frees the memory; false if it was not allocated here. */
bool allocation_free(void *memory);

/* ---- unpack.c: bytes that arrive packed ---- */

/* Elements that follow one another from this offset of the buffer. */
struct piece {
    int64_t offset; /* bytes */
    uint64_t elements;
};

/* The destination of received bytes when a collective has ended. `bounce` holds the pieces one after another; it is
 * NULL if none was needed. */
struct unpack {
    void *bounce;
    void *receive;
    struct piece *pieces;
    int count;
    MPI_Datatype type;
    struct shape shape;
};

/* Takes a bounce buffer of `bytes` bytes for `count` pieces, perhaps none, and takes over the list of pieces. They will
 * be unpacked into `receive`. The program may free its datatype before. Returns an MPI error code. */
int unpack_prepare(struct unpack *unpack, void *receive, struct piece *pieces, int count, MPI_Datatype type,
                   const struct shape *shape, uint64_t bytes);
/* Moves the bytes if `arrived`, then releases the bounce buffer. */
int unpack_finish(struct unpack *unpack, bool arrived);

/* ---- buffers.c: the buffers of a call in liboutboard's form ---- */

/* One buffer as the program passed it: `counts` and `displacements` by rank, or NULL and `count` elements, of one block
 * or for each rank. */
struct user_buffer {
    void *address;
    const int *counts;
    const int *displacements;
    int count;
    MPI_Datatype type;
};

/* Bytes and offsets by block, from `memory`: plain memory of the program, or part of the bounce buffer. */
struct buffer {
    struct user_buffer user;
    int blocks;          /* one for each rank, or one of `elements`, or none */
    uint64_t elements;
    bool must_pack;
    struct shape shape;
    MPI_Count extent;
    bool packed;
    uint64_t total;
    uint64_t *bytes;
    uint64_t *offsets;
    void *memory;
};

struct buffers {
    struct buffer send;
    struct buffer receive;
    struct unpack unpack;
    uint64_t *lists;
};

/* Sets the buffer to one run of elements, or to the blocks of all `ranks`, equal or by rank. */
void buffer_set_run(struct buffer *buffer, const struct user_buffer *user_buffer, uint64_t elements);
void buffer_set_blocks(struct buffer *buffer, const struct user_buffer *user_buffer, int ranks);
/* Sets the buffer to the block of `rank` that lies, or is received, in place among the blocks of another. Returns an
 * MPI error code. */
int buffer_set_block_of(struct buffer *buffer, const struct user_buffer *user_buffer, int rank);
/* Computes all addresses and packs where necessary. Returns an MPI error code; call buffers_free_lists() also after an
 * error. */
int buffers_prepare(struct buffers *buffers, int ranks);
/* Called after posting, which has read the lists. */
void buffers_free_lists(struct buffers *buffers);
/* Never NULL, which liboutboard rejects even for no bytes. */
void *buffer_memory(const struct buffer *buffer);
/* Whether MPI would reject the buffer: null datatype, negative count, missing list. `ranks` is 0 for a single count. */
bool user_buffer_invalid(const struct user_buffer *user_buffer, int ranks);
/* Bytes of `count` elements; false beyond 64 bits. */
bool user_buffer_bytes(const struct user_buffer *user_buffer, uint64_t *bytes);

/* ---- posting.c: from a call to a collective in flight ---- */

/* One collective with its MPI arguments. */
struct call {
    enum collective collective;
    MPI_Comm comm;
    struct user_buffer send; /* of a reduction only the buffer, of a broadcast nothing */
    struct user_buffer receive;
    int root;
    MPI_Op op;
    bool fortran;            /* called by a Fortran name */
};

/* A reduction in liboutboard's terms. */
struct reduction {
    enum outboard_operator operator;
    enum outboard_element element;
    uint64_t element_bytes;
};

/* A call that is being posted to liboutboard. */
struct posting {
    const struct call *call;
    struct group *group;
    uint64_t bytes; /* that all ranks know: of each rank, of a block, or of all together */
    struct buffers buffers;
    outboard_request *posted;
};

static inline bool posting_is_root(const struct posting *posting)
{
    return posting->group->rank == posting->call->root;
}

/* The functions that offload one collective. */
struct method {
    /* Returns the bytes that all ranks know from arguments that MPI makes equal, or BYTES_UNKNOWN. False for calls that
     * liboutboard does not carry out and arguments that MPI would reject: these are left to MPI. */
    bool (*measure)(const struct call *call, const struct group *group, uint64_t *bytes);
    /* Whether the group's configuration offloads this many bytes. */
    bool (*allows)(const struct group *group, uint64_t bytes);
    /* The result depends on the path: never tried on both paths in one run, except in learning mode. */
    bool reduces;
    /* Sets the buffers. Returns an MPI error code. */
    int (*set_buffers)(struct posting *posting);
    /* Posts the buffers that buffers_prepare() has computed. Returns MPI_SUCCESS, or an error code for lengths that MPI
     * requires to be equal and that differ. */
    int (*post)(struct posting *posting);
};

extern const struct method allgather_method, allgatherv_method, broadcast_method, alltoall_method, alltoallv_method,
    rooted_method, rooted_uneven_method, barrier_method, reduction_method;

/* ---- operators.c ---- */

/* False if liboutboard lacks this operator on this datatype: it is the program's own, or undefined. */
bool reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction);

/* ---- posting.c ---- */

const struct method *method_of(enum collective collective);
/* Each carries out a call to be offloaded and returns the result of the MPI function. */
int offload(const struct call *call, const struct route *route);
int offload_nonblocking(const struct call *call, const struct route *route, MPI_Request *request);
int offload_persistent(const struct call *call, const struct route *route, MPI_Request *request);
/* Prepares the posting of such a call. */
void posting_init(struct posting *posting, const struct call *call, struct group *group, uint64_t bytes);
/* Returns an MPI error code. After success posting->posted is in flight, and the caller must call unpack_finish(). */
int posting_post(struct posting *posting, enum form form);

/* ---- requests.c: collectives in flight ---- */

int requests_start(void);
void requests_stop(void);
/* Makes the MPI request of a collective just posted. It takes the collective over, also when it fails. */
int request_make(const struct posting *posting, MPI_Request *request);
/* Makes an inactive MPI request that posts the call, whose buffers are set, whenever it is started. It takes over
 * the request's group, also when it fails. */
int request_make_persistent(const struct posting *posting, MPI_Request *request);
/* Starts the request; false if it is not the shim's. */
bool request_start(MPI_Request *request, int *outcome);
/* Called before MPI frees a request. */
void request_release(MPI_Request request);
/* Waits for a collective without an MPI request while MPI's own progress goes on. Returns an MPI error code. */
int request_wait_blocking(outboard_request *posted, struct unpack *unpack);
/* Ends collectives in flight on the communicator, or on all (MPI_COMM_NULL); forgets a communicator that is named. */
void requests_drain(MPI_Comm comm);
/* The number of collectives that have ended. */
unsigned requests_ended(void);
/* Waits until more have ended; false if none is in flight. */
bool requests_wait_past(unsigned ended);

/* ---- errors.c ---- */

/* The MPI error code for an outcome of liboutboard, with this message as its string. */
int error_code(int outcome, const char *message);
/* The MPI error code for the outcome of a liboutboard call, with its message; MPI_SUCCESS for OUTBOARD_OK. */
int outcome_code(int outcome);
/* Whether `code` stands for this outcome, which is a failure. */
bool error_is_outcome(int code, int outcome);
/* Raises the code on the communicator's error handler and returns it. */
int error_raise(MPI_Comm comm, int code);

/* ---- report.c: counts and times for OUTBOARD_MPI_REPORT ---- */

/* Whether a report will be written; then every call is timed. */
extern bool report_enabled;
/* Sets it; `choice` is the value of OUTBOARD_CHOICE in use. */
void report_enable(bool enabled, const char *choice);
void report_start(const char *native_reason);
void report_count_passed(enum collective collective, enum form form);
void report_add_passed_time(double seconds);
void report_choices(uint64_t digest, int communicators);
void report_add_posted(enum collective collective, enum form form, uint64_t bytes, bool packed, double seconds);
void report_add_waiting(double seconds);
void report_count_failed(void);
void report_count_allocated(void);
/* Collective over MPI_COMM_WORLD. */
void report_write(void);

static inline void choice_record_passed(const struct route *route, enum collective collective, enum form form,
                                        MPI_Request made)
{
    report_count_passed(collective, form);
    if (route->timed)
        choice_time_passed(route, form, made);
}

#endif
