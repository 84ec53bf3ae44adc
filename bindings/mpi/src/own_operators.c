/*
 * own_operators.c: operators and datatypes of the program in reductions.
 *
 * liboutboard gathers the contributions, and the rank combines them by MPI_Reduce_local, which knows every operator on
 * every datatype. Elements must lie in memory without gaps, as liboutboard moves bytes.
 *
 * The program may free an operator or a datatype while a reduction is in flight. MPI then keeps it; the shim frees it
 * later, when liboutboard has no request with it any more.
 *
 *   use       entered by                      left by
 *   in use    own_reduction_of                own_operators_free_unused, once the program has freed one of the handles
 *
 * Invariant: a handle in the list is not freed, so MPI gives it to nothing else.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "operators.h"
#include "library.h"
#include "memory.h"
#include "shim.h"

struct use {
    MPI_Op op;
    MPI_Datatype type;
    struct reduction reduction;
    int holders; /* calls that are posted later */
    struct use *next;
};

/* Handles that the program has freed and uses still need. */
struct freed {
    bool is_op;
    MPI_Op op;
    MPI_Datatype type;
    struct freed *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct use *uses;
static struct freed *freed_handles;

/* An operator of liboutboard. */
static void combine(const void *in, void *inout, size_t count, void *context)
{
    const struct use *use = context;
    for (size_t done = 0, part; done < count; done += part) {
        size_t bytes = done * use->reduction.element_bytes;
        part = count - done < INT_MAX ? count - done : INT_MAX;
        mpi.Reduce_local(address_plus(in, (int64_t)bytes), address_plus(inout, (int64_t)bytes), (int)part, use->type,
                         use->op);
    }
}

/* With the lock held. */
static struct use *find_use(MPI_Op op, MPI_Datatype type)
{
    struct use *use = uses;
    while (use != NULL && (use->op != op || use->type != type))
        use = use->next;
    return use;
}

/* With the lock held; NULL if the reduction cannot be offloaded. */
static struct use *make_use(MPI_Op op, MPI_Datatype type)
{
    struct shape shape;
    if (op == MPI_OP_NULL || type == MPI_DATATYPE_NULL || shape_of(type, &shape) != MPI_SUCCESS || !shape.no_gaps ||
        shape.size == 0 || shape.true_lb != 0)
        return NULL;
    struct use *use = calloc(1, sizeof *use);
    if (use == NULL)
        return NULL;
    *use = (struct use){.op = op, .type = type, .reduction = {.element_bytes = shape.size}, .next = uses};
    if (outboard.op_create(combine, shape.size, use, &use->reduction.operator) != OUTBOARD_OK) {
        free(use);
        return NULL;
    }
    return uses = use;
}

bool own_reduction_of(MPI_Op op, MPI_Datatype type, struct reduction *reduction)
{
    pthread_mutex_lock(&lock);
    struct use *use = find_use(op, type);
    if (use == NULL)
        use = make_use(op, type);
    if (use != NULL)
        *reduction = use->reduction;
    pthread_mutex_unlock(&lock);
    return use != NULL;
}

static void add_holders(MPI_Op op, MPI_Datatype type, int count)
{
    pthread_mutex_lock(&lock);
    struct use *use = find_use(op, type);
    if (use != NULL)
        use->holders += count;
    pthread_mutex_unlock(&lock);
}

void own_operator_hold(MPI_Op op, MPI_Datatype type)
{
    add_holders(op, type, 1);
}

void own_operator_release(MPI_Op op, MPI_Datatype type)
{
    add_holders(op, type, -1);
    own_operators_free_unused();
}

static bool keep(bool is_op, MPI_Op op, MPI_Datatype type)
{
    bool used = false;
    pthread_mutex_lock(&lock);
    for (const struct use *use = uses; use != NULL; use = use->next)
        used = used || (is_op ? use->op == op : use->type == type);
    struct freed *freed = used ? malloc(sizeof *freed) : NULL;
    if (freed != NULL) {
        *freed = (struct freed){is_op, op, type, freed_handles};
        freed_handles = freed;
    }
    pthread_mutex_unlock(&lock);
    if (used)
        own_operators_free_unused();
    return used;
}

bool own_operator_keep_op(MPI_Op op)
{
    return uses != NULL && keep(true, op, MPI_DATATYPE_NULL);
}

bool own_operator_keep_type(MPI_Datatype type)
{
    return uses != NULL && keep(false, MPI_OP_NULL, type);
}

static bool needs(const struct use *use, const struct freed *freed)
{
    return freed->is_op ? use->op == freed->op : use->type == freed->type;
}

/* Ends the uses of the handle as far as nothing is in flight; with the lock held. Whether a use is left. */
static bool end_uses(const struct freed *freed)
{
    bool left = false;
    for (struct use **at = &uses; *at != NULL;) {
        struct use *use = *at;
        if (!needs(use, freed)) {
            at = &use->next;
        } else if (use->holders > 0 || outboard.op_free(use->reduction.operator) != OUTBOARD_OK) {
            left = true;
            at = &use->next;
        } else {
            *at = use->next;
            free(use);
        }
    }
    return left;
}

void own_operators_free_unused(void)
{
    pthread_mutex_lock(&lock);
    for (struct freed **at = &freed_handles; *at != NULL;) {
        struct freed *freed = *at;
        if (end_uses(freed)) {
            at = &freed->next;
            continue;
        }
        *at = freed->next;
        if (freed->is_op)
            mpi.Op_free(&freed->op);
        else
            mpi.Type_free(&freed->type);
        free(freed);
    }
    pthread_mutex_unlock(&lock);
}

void own_operators_stop(void)
{
    own_operators_free_unused();
    pthread_mutex_lock(&lock);
    while (uses != NULL) {
        struct use *use = uses;
        uses = use->next;
        outboard.op_free(use->reduction.operator);
        free(use);
    }
    pthread_mutex_unlock(&lock);
}
