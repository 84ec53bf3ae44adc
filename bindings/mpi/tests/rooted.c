/*
 * rooted.c: MPI_(I)gather(v) and MPI_(I)scatter(v) of the conformance program: from and at every root, in place at the
 * root and not, with gaps, of types with holes, with displacements below zero, several at once. Other ranks pass
 * invalid values for arguments that only the root uses.
 */
#include "conformance.h"

/* Counts of the ranks: all equal, or not. */
static int *counts_of(int members, int count, int even)
{
    int *counts = fresh((size_t)members * sizeof(int));
    for (int of = 0; of < members; of++)
        counts[of] = even ? count : uneven(of, 1, count);
    return counts;
}

static struct blocks blocks_in_order(int members, const int *counts, int stride)
{
    struct blocks made = blocks_of(members, counts, stride, 0);
    made.total = 0;
    for (int of = 0; of < members; of++) {
        made.displacements[of] = made.total;
        made.total += counts[of];
    }
    return made;
}

/* One call at one root. Ignored arguments get invalid values. */
struct rooted {
    MPI_Comm comm;
    int me, members, root, even, form, negative;
    int *counts;
    struct blocks many, one;
    MPI_Request request;
};

static struct rooted rooted_of(MPI_Comm comm, int root, int count, int even, int form)
{
    struct rooted call = {.comm = comm, .root = root, .even = even, .form = form, .request = MPI_REQUEST_NULL};
    MPI_Comm_rank(comm, &call.me);
    MPI_Comm_size(comm, &call.members);
    call.negative = even ? 0 : form & NEGATIVE;
    call.counts = counts_of(call.members, count, even);
    int stride = form & STRIDED ? 3 : 1;
    call.many = even ? blocks_in_order(call.members, call.counts, stride)
                     : blocks_of(call.members, call.counts, stride, call.negative);
    call.one = blocks_of(1, &call.counts[call.me], form & STRIDED && call.me % 2 == 0 ? 2 : 1, 0);
    return call;
}

static void rooted_free(struct rooted *call)
{
    blocks_free(&call->many);
    blocks_free(&call->one);
    free(call->counts);
}

static int is_root(const struct rooted *call)
{
    return call->me == call->root;
}

static void post_gather(struct rooted *call)
{
    int mine = call->counts[call->me], at_root = is_root(call);
    int in_place = at_root && call->form & IN_PLACE;
    block(in_place ? &call->many : &call->one, in_place ? call->me : 0, call->me, 0, in_place ? call->negative : 0, 0);
    const void *from = in_place ? MPI_IN_PLACE : call->one.cells;
    int count = in_place ? -1 : mine, each = at_root ? mine : -1;
    MPI_Datatype type = in_place ? MPI_DATATYPE_NULL : call->one.type;
    MPI_Datatype into = at_root ? call->many.type : MPI_DATATYPE_NULL;
    int *to = at_root ? origin(&call->many, call->negative) : NULL;
    const int *counts = at_root ? call->many.counts : NULL, *places = at_root ? call->many.displacements : NULL;
    MPI_Request *request = &call->request;
    int outcome = call->even ? POST(call->form, Gather, gather, request, from, count, type, to, each, into, call->root,
                                    call->comm)
                             : POST(call->form, Gatherv, gatherv, request, from, count, type, to, counts, places, into,
                                    call->root, call->comm);
    CHECK(outcome == MPI_SUCCESS);
}

static void check_gather(struct rooted *call)
{
    int bad = 0;
    CHECK(MPI_Wait(&call->request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    for (int of = 0; is_root(call) && of < call->members; of++)
        bad += block(&call->many, of, of, 0, call->negative, 1);
    CHECK(bad == 0);
    CHECK(!something_between(&call->many));
    rooted_free(call);
}

static void post_scatter(struct rooted *call)
{
    int mine = call->counts[call->me], at_root = is_root(call);
    int in_place = at_root && call->form & IN_PLACE;
    for (int of = 0; at_root && of < call->members; of++)
        block(&call->many, of, call->root, of, call->negative, 0);
    const void *from = at_root ? origin(&call->many, call->negative) : NULL;
    void *to = in_place ? MPI_IN_PLACE : call->one.cells;
    int count = in_place ? -1 : mine, each = at_root ? mine : -1;
    MPI_Datatype type = in_place ? MPI_DATATYPE_NULL : call->one.type;
    MPI_Datatype of_many = at_root ? call->many.type : MPI_DATATYPE_NULL;
    const int *counts = at_root ? call->many.counts : NULL, *places = at_root ? call->many.displacements : NULL;
    MPI_Request *request = &call->request;
    int outcome = call->even ? POST(call->form, Scatter, scatter, request, from, each, of_many, to, count, type,
                                    call->root, call->comm)
                             : POST(call->form, Scatterv, scatterv, request, from, counts, places, of_many, to, count,
                                    type, call->root, call->comm);
    CHECK(outcome == MPI_SUCCESS);
}

static void check_scatter(struct rooted *call)
{
    CHECK(MPI_Wait(&call->request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    if (!(is_root(call) && call->form & IN_PLACE))
        CHECK(block(&call->one, 0, call->root, call->me, 0, 1) == 0);
    CHECK(!something_between(&call->one));
    rooted_free(call);
}

/* Every member is the root for some counts and forms. */
static void both_on(MPI_Comm comm, int count, int form, void (*post)(struct rooted *), void (*check)(struct rooted *))
{
    int members;
    MPI_Comm_size(comm, &members);
    struct rooted even = rooted_of(comm, (count + form) % members, count, 1, form);
    post(&even);
    struct rooted odd = rooted_of(comm, (count + form) % members, count, 0, form);
    post(&odd);
    check(&odd);
    check(&even);
}

static void gathers_on(MPI_Comm comm, int count, int form)
{
    both_on(comm, count, form, post_gather, check_gather);
}

static void scatters_on(MPI_Comm comm, int count, int form)
{
    both_on(comm, count, form, post_scatter, check_scatter);
}

void gathers_at_a_root(void)
{
    in_every_form(gathers_on);
}

void scatters_from_a_root(void)
{
    in_every_form(scatters_on);
}
