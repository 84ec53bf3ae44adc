/*
 * shim.h: what the parts of the MPI shim share.
 *
 * The shim is loaded before the MPI library (LD_PRELOAD), takes the collectives that the service process can carry out,
 * of communicators whose members all agreed to it, and hands them to the service process through liboutboard.
 * Everything below it is called by the PMPI_ names alone. Where a profiling tool stands above it and calls PMPI_ names
 * itself, the shim sees nothing: without MPI_Init it does nothing at all.
 *
 * Invariants: whether a call is offloaded depends on what the members of the communicator have agreed on, on the number
 * of their calls and on arguments that MPI makes equal on all members, never on local state. Nothing collective happens
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

#define SHIM_SENTENCE 512

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
/* False leaves the sentence in `why`. */
bool library_load(char *why, size_t why_bytes);
/* Writes what the last failing call of this thread said, after its meaning. */
void library_sentence(int outcome, char *sentence, size_t bytes);

/* Open MPI's own progress engine: exported by libopen-pal, not declared by mpi.h. */
struct progress_engine {
    void (*progress)(void);
    int (*attach)(int (*hook)(void));
    int (*remove)(int (*hook)(void));
};
extern struct progress_engine engine;
bool progress_engine_find(char *why, size_t why_bytes);

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

/* How MPI was asked for it; counted apart. */
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };

/* ---- tree.c: what the ranks of MPI_COMM_WORLD tell one another in MPI_Init ---- */

/* Rank 0 receives the elements of all ranks, each in its place. Other ranks receive an undefined part of them. */
void tree_gather(void *all, size_t each);
void tree_broadcast(void *bytes, size_t count);
/* The least of all ranks' numbers. */
int tree_least(int mine);
/* From that rank to rank 0. */
void tree_lift(void *bytes, size_t count, int from);

/* ---- hosts.c: where the ranks are ---- */

/* How the ranks of a communicator lie; equal on all of them. */
struct place {
    int hosts;
    int ranks_per_host; /* the most on one */
};

/* Collective over MPI_COMM_WORLD, in MPI_Init. */
void hosts_find(void);
void hosts_forget(void);
/* Whether the rank of MPI_COMM_WORLD is the first on its host. */
bool hosts_first(int rank);
/* The name of the rank's host; on rank 0 alone. */
const char *hosts_name(int rank);
/* Local. False where a rank of the communicator is of another world. */
bool place_of(MPI_Comm comm, int ranks, struct place *place);
static inline bool same_place(const struct place *one, const struct place *other)
{
    return one->hosts == other->hosts && one->ranks_per_host == other->ranks_per_host;
}

/* ---- choice.c: natively or offloaded ---- */

/* Bytes of calls whose bytes nobody knows. */
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
    struct row *row;
    struct class *next;
};

/* What the members of a communicator have chosen so far; equal on all of them but for the times in trials. */
struct choices {
    struct class *classes; /* in the order of their first calls */
    struct class *latest;
    int waiting;           /* classes that wait for an agreement */
    struct class *trying;  /* that which began its trial last */
    uint64_t calls, since; /* of all classes: so far, and when it began */
    uint64_t asks_from;    /* calls of all classes before which no class asks for a trial */
    unsigned groupless;    /* nonblocking calls that only the lack of a group kept native */
    uint64_t digest;       /* of the ways of all calls */
};

/* One call, from the choice of its way to its end. */
struct turn {
    struct group *group; /* NULL, as the class, where nothing is to be chosen */
    struct class *class;
    enum way way;
    struct turn_of of;
    uint64_t bytes;
    bool timed;
    double began;
};

/* Reads the environment of rank 0, OUTBOARD_CHOICE if it is `heeded`. Collective over MPI_COMM_WORLD. True when every
 * rank is to run natively. Says whether rank 0 has a shim of the same sources. */
bool choice_agree(bool heeded, bool *same_build);
/* Once all ranks are attached; collective over MPI_COMM_WORLD. Then before communicators go; the same. */
void choice_start(void);
void choice_stop(void);
/* Whether groups are made at once and every call is offloaded. */
bool choice_offloads_all(void);
/* The value of OUTBOARD_CHOICE that counts. */
const char *choice_name(void);
/* When the communicator goes. */
void choices_forget(struct group *group);
/* Chooses the way of a call, the same on all members; true for OFFLOADED: then the group is GROUPED. */
bool choice_offloads(const struct call *call, enum form form, struct turn *turn);
/* What the call has taken inside MPI is known, and in a trial what its caller has lost outside. */
void choice_timed(struct class *class, enum way way, const struct turn_of *of, double seconds, double lost);
/* A call passed through. `made` is its request, MPI_REQUEST_NULL of those that are not nonblocking. */
void choice_passed_timed(const struct turn *turn, enum form form, MPI_Request made);
static inline void choice_passed(const struct turn *turn, enum collective collective, enum form form, MPI_Request made);

/* ---- timings.c: nonblocking calls whose time counts, until they complete ---- */

/* The call of this turn has the request now; posting it took so long. */
void timings_enter(MPI_Request request, const struct turn *turn, double seconds);
/* Whether there are such requests, and whether any of these is one; called before they are tested or waited for. */
bool timings_any(void);
bool timings_know(int count, const MPI_Request *requests);
/* The request has completed in a call that took so long. */
void timings_completed(MPI_Request request, double seconds);
void timings_forget(MPI_Request request);
void timings_forget_group(const struct group *group);

/* ---- ledger.c: what was done, and how long it took, by class and place ---- */

struct row {
    unsigned key;
    struct place place;
    atomic_ullong calls[WAYS];
    atomic_ullong nanoseconds[WAYS]; /* inside MPI */
    enum way way;                    /* as chosen at last */
    enum why why;
    struct learnt learnt;            /* as agreed at last */
    bool tried;                      /* a trial has begun in this run */
    struct row *next;
};

/* The row, made when there is none; NULL without memory. */
struct row *ledger_row(unsigned key, const struct place *place);
void ledger_counted(struct row *row, enum way way);
void ledger_timed(struct row *row, enum way way, double seconds);
void ledger_chosen(struct row *row, const struct trial *trial);
/* In the order in which they were made. */
const struct row *ledger_first(void);
/* Seconds that offloading has saved, by what trials have shown; below zero where it has cost more. */
double ledger_saved(void);
void ledger_stop(void);

/* ---- remembered.c: what earlier runs on this cluster found out ---- */

struct remembered {
    unsigned key;
    struct place place;
    struct learnt learnt;
    uint64_t calls;
};

/* Collective over MPI_COMM_WORLD: rank 0 reads the file for all. */
void remembered_read(void);
/* NULL when there is nothing. */
const struct remembered *remembered_find(unsigned key, const struct place *place);
/* Of rank 0: adds what the ledger has, if this run tried anything. */
void remembered_write(void);
void remembered_stop(void);

/* ---- groups.c: attachment of the process and groups of communicators ---- */

enum standing {
    NEW,       /* nobody has asked for its place yet */
    GROUPLESS, /* it may have a group and has none yet */
    GROUPED,
    REFUSED    /* it never has one: everything passes through */
};

/* What the shim knows of a communicator. Calls on one communicator are in order, so its fields need no lock. */
struct group {
    MPI_Comm comm;
    enum standing standing;
    outboard_group *members; /* while GROUPED */
    int reduced_bits;        /* of the bytes of a reduction that all service processes have scratch for */
    int ranks;
    int rank;
    struct place place;      /* unless NEW or REFUSED */
    struct choices choices;
};

/* After MPI_Init (collective over MPI_COMM_WORLD) and before MPI_Finalize. */
void shim_start(void);
void shim_stop(void);
/* The attachment, NULL while everything passes through. */
outboard_context *shim_context(void);
/* A communicator is new. Does nothing, but where every call is offloaded from the start: then its group is made. */
void communicator_made(MPI_Comm comm);
/* The same for a call on it: enters it if it is not in the table; NULL while everything passes through. Local. */
struct group *group_of_call(MPI_Comm comm);
/* Finds its place if nobody has; false when it is REFUSED. Local. */
bool group_may_have(struct group *group);
/* Collective over the communicator; after it the group is GROUPED or REFUSED, on all members alike. */
void group_make(struct group *group);
/* A group of its own for a persistent request, made as group_make() does: GROUPED or REFUSED. */
struct group *group_of_request(const struct group *like);
/* Local: the request has gone. Nothing of it is in flight. */
void group_drop(struct group *own);
/* Before the communicator goes: ends what is in flight on it. Returns what group_left() is given when it has gone. */
MPI_Comm group_leaves(MPI_Comm comm);
void group_left(MPI_Comm outer);

/* ---- communicators.c: the table of communicators ---- */

/* NULL when the communicator is not in the table. Takes no lock. */
struct group *group_of(MPI_Comm comm);
/* False without memory. */
bool communicators_enter(struct group *group);
void communicators_leave(MPI_Comm comm);
int communicators_count(void);
/* Any that is left, or NULL. */
struct group *communicators_any(void);
void communicators_stop(void);

/* ---- memory.c: datatypes as bytes, bounce buffers ---- */

struct shape {
    uint64_t size;    /* bytes of data of one element */
    int64_t true_lb;  /* where its first byte lies from the buffer address */
    bool solid;       /* its bytes lie in memory without gaps and in the order in which MPI_Pack takes them */
    bool stackable;   /* solid, and elements follow one another without gaps */
};

int shape_of(MPI_Datatype type, struct shape *shape);
/* Packs elements, or unpacks them: `packed` holds count * shape->size bytes. Returns an MPI error code. */
int convert_elements(bool packs, void *elements, uint64_t count, MPI_Datatype type, const struct shape *shape,
                     void *packed);
/* Pointer arithmetic that may leave the object, as MPI_BOTTOM and negative lower bounds do. */
void *moved(const void *address, int64_t by);
int memory_start(void);
void memory_stop(void);
/* A buffer of at least this many bytes, NULL when there is none to be had. */
void *bounce_take(size_t bytes);
void bounce_give(void *bounce);

/* ---- scratch.c: large blocks of the shim's own for a short time ---- */

/* Zeroed memory at a multiple of 64; NULL when there is none to be had. */
void *scratch_take(size_t bytes);
/* NULL is nothing to give. */
void scratch_give(void *memory);

/* ---- allocation.c: memory of MPI_Alloc_mem ---- */

/* Memory shared with the service process; NULL when the MPI library is to allocate. */
void *allocation_take(MPI_Aint size);
/* Gives it back; false when it is not such memory. */
bool allocation_give(void *memory);

/* ---- landing.c: bytes that arrive packed ---- */

/* Elements that follow one another from this offset of the buffer. */
struct piece {
    int64_t offset; /* bytes */
    uint64_t elements;
};

/* Where the bytes of a collective go when it has ended: `bounce` is NULL when none was needed; it holds the
 * pieces one after another. */
struct landing {
    void *bounce;
    void *receive;
    struct piece *pieces;
    int count;
    MPI_Datatype type;
    struct shape shape;
};

/* Room in a bounce buffer of `bytes` bytes for `count` pieces, none perhaps, which the landing takes over; they are to
 * be unpacked into `receive`. The program may free its datatype before. Returns an MPI error code. */
int landing_start(struct landing *landing, void *receive, struct piece *pieces, int count, MPI_Datatype type,
                  const struct shape *shape, uint64_t bytes);
/* Ends the landing: moves the bytes if `arrived`, releases the bounce buffer. */
int landing_finish(struct landing *landing, bool arrived);

/* ---- sides.c: the buffers of a call as liboutboard wants them ---- */

/* One buffer as the program gave it: `counts` and `displacements` by rank, or NULL and `count` elements, of one block
 * or for each rank. */
struct given {
    void *buffer;
    const int *counts;
    const int *displacements;
    int count;
    MPI_Datatype type;
};

/* Bytes and offsets by block, from `memory`: plain memory of the program, or part of the landing's bounce buffer. */
struct side {
    struct given given;
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

struct sides {
    struct side send;
    struct side receive;
    struct landing landing;
    uint64_t *lists;
};

/* The side is one run of elements, or the blocks of all `ranks`, whether all alike or by rank. */
void side_run(struct side *side, const struct given *given, uint64_t elements);
void side_of_all(struct side *side, const struct given *given, int ranks);
/* The side is the block of `rank` that lies, or is to come, in place among those of another buffer. Returns an MPI
 * error code. */
int side_of_rank(struct side *side, const struct given *given, int rank);
/* Finds out where everything lies, packs what has to be. Returns an MPI error code; sides_end() all the same. */
int sides_begin(struct sides *sides, int ranks);
/* After posting, which has read the lists. */
void sides_end(struct sides *sides);
/* Never NULL, which liboutboard takes for a mistake even where there are no bytes. */
void *side_memory(const struct side *side);
/* What MPI would refuse: a null datatype, a negative count, a list that is missing. `ranks` is 0 for a single count. */
bool given_unsound(const struct given *given, int ranks);
/* Bytes of `count` elements; false beyond 64 bits. */
bool given_bytes(const struct given *given, uint64_t *bytes);

/* ---- posting.c: from a call to a collective in flight ---- */

/* One collective as MPI was given it. */
struct call {
    enum collective collective;
    MPI_Comm comm;
    struct given send;    /* of a reduction the buffer alone, of a broadcast nothing */
    struct given receive;
    int root;
    MPI_Op op;
    bool fortran;         /* called by a Fortran name */
};

/* What a reduction is to liboutboard. */
struct reduction {
    enum outboard_operator operator;
    enum outboard_element element;
    uint64_t element_bytes;
};

/* A call on its way to liboutboard. */
struct posting {
    const struct call *call;
    struct group *group;
    uint64_t bytes; /* what all ranks know: of each rank, of a block, or of all together */
    struct sides sides;
    outboard_request *posted;
};

static inline bool posting_is_root(const struct posting *posting)
{
    return posting->group->rank == posting->call->root;
}

/* How one collective is handed over. */
struct method {
    /* The bytes that all ranks know, by what MPI makes equal on all ranks, or BYTES_UNKNOWN. False for what liboutboard
     * does not carry out and for arguments that MPI would refuse: left to MPI. */
    bool (*measure)(const struct call *call, const struct group *group, uint64_t *bytes);
    /* Whether the group's configuration offloads so many. */
    bool (*allows)(const struct group *group, uint64_t bytes);
    /* Its result depends on who computes it: never tried both ways in one run. */
    bool reduces;
    /* Says what the sides are. Returns an MPI error code. */
    int (*arrange)(struct posting *posting);
    /* Posts what sides_begin() has found; MPI_SUCCESS, or an error code for lengths that MPI makes equal and that are
     * not. */
    int (*hand_over)(struct posting *posting);
};

extern const struct method allgather_method, allgatherv_method, broadcast_method, alltoall_method, alltoallv_method,
    rooted_method, rooted_uneven_method, barrier_method, reduction_method;

/* ---- operators.c ---- */

/* False where this operator on this datatype is none of liboutboard's: of the program's own making, or not defined. */
bool reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction);

/* ---- posting.c ---- */

const struct method *method_of(enum collective collective);
/* Each carries out a call that is to be offloaded and returns what the MPI function returns. */
int offload(const struct call *call, const struct turn *turn);
int offload_nonblocking(const struct call *call, const struct turn *turn, MPI_Request *request);
int offload_persistent(const struct call *call, const struct turn *turn, MPI_Request *request);
/* Makes the posting of such a call ready to be posted. */
void posting_fill(struct posting *posting, const struct call *call, struct group *group, uint64_t bytes);
/* Returns an MPI error code; after success posting->posted is in flight and the landing to be finished. */
int posting_post(struct posting *posting, enum form form);

/* ---- requests.c: collectives in flight ---- */

int requests_start(void);
void requests_stop(void);
/* Makes the MPI request of a collective just posted, which it takes over, also when it fails. */
int request_make(const struct posting *posting, MPI_Request *request);
/* Makes an inactive MPI request that posts the call, whose sides are arranged, whenever it is started. It takes over
 * the group, which is its own, also when it fails. */
int request_make_persistent(const struct posting *posting, MPI_Request *request);
/* Starts it; false when it is none of ours. */
bool request_start(MPI_Request *request, int *outcome);
/* Before MPI frees a request. */
void request_forget(MPI_Request request);
/* Waits for a collective that no MPI request stands for, MPI's own progress going on. Returns an MPI error code. */
int request_wait_blocking(outboard_request *posted, struct landing *landing);
/* Ends what is in flight on the communicator, or on all (MPI_COMM_NULL), and forgets it where it is named. */
void requests_drain(MPI_Comm comm);
/* How many have ended. */
unsigned requests_ended(void);
/* Waits until more have; false when none is in flight. */
bool requests_wait_past(unsigned ended);

/* ---- errors.c ---- */

/* The MPI error code that stands for an outcome of liboutboard, with this sentence as its string. */
int error_code(int outcome, const char *sentence);
/* The MPI error code of what a call of liboutboard just returned, with its sentence; MPI_SUCCESS for OUTBOARD_OK. */
int outcome_code(int outcome);
/* Whether it is the code of this outcome, which is a failure. */
bool error_stands_for(int code, int outcome);
/* Raises the code on the communicator's error handler and returns it. */
int error_raise(MPI_Comm comm, int code);

/* ---- report.c: what was done, for OUTBOARD_MPI_REPORT ---- */

/* Whether there will be a report; then every call is timed. */
extern bool report_wanted;
void report_start(const char *why_native);
void report_passed(enum collective collective, enum form form);
void report_passing_took(double seconds);
void report_choices(uint64_t digest, int communicators);
void report_posted(enum collective collective, enum form form, uint64_t bytes, bool packed, double seconds);
void report_waited(double seconds);
void report_failed(void);
void report_allocated(void);
/* Collective over MPI_COMM_WORLD. */
void report_write(void);

static inline void choice_passed(const struct turn *turn, enum collective collective, enum form form, MPI_Request made)
{
    report_passed(collective, form);
    if (turn->timed)
        choice_passed_timed(turn, form, made);
}

#endif
