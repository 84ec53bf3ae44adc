/*
 * memory.c: datatypes as bytes, and buffers for datatypes that are not plain memory.
 *
 * liboutboard moves bytes. Elements of a datatype that are plain memory are passed as they lie. Other elements are
 * packed into a bounce buffer and unpacked from one. Each rank decides this by itself.
 */
#include <pthread.h>
#include <string.h>

#include "memory.h"
#include "library.h"
#include "scratch.h"
#include "shim.h"

/* MPI_Pack counts bytes in an int. */
#define PACK_LIMIT ((uint64_t)1 << 30)
/* Above this size, proving that a constructed type is plain memory costs more than packing it. */
#define PROOF_LIMIT ((uint64_t)16 << 20)
#define BOUNCES_FREE_MAX 4
/* Larger bounce buffers are freed at once: the program may want the memory. */
#define BOUNCE_FREE_BYTES_MAX ((size_t)64 << 20)

static int contiguous_keyval = MPI_KEYVAL_INVALID;
static char contiguous_mark, scattered_mark;

/*
 * Packs one element in which each byte holds part of its own position. The packed bytes read the same if and only if
 * packing moves nothing. (A type may fill its extent and yet list its parts in another order.)
 */
static bool packing_moves_nothing(MPI_Datatype type, uint64_t size, int64_t true_lb)
{
    unsigned char *original = scratch_allocate(2 * size);
    if (original == NULL)
        return false;
    unsigned char *packed = original + size;
    bool same = true;
    for (unsigned shift = 0; same && (shift == 0 || (size - 1) >> shift != 0); shift += 8) {
        for (uint64_t at = 0; at < size; at++)
            original[at] = (unsigned char)(at >> shift);
        int position = 0;
        same = mpi.Pack(address_plus(original, -true_lb), 1, type, packed, (int)size, &position, MPI_COMM_SELF) ==
                   MPI_SUCCESS &&
               (uint64_t)position == size && memcmp(original, packed, size) == 0;
    }
    scratch_free(original);
    return same;
}

static bool type_is_contiguous(MPI_Datatype type);

/* Elements of a negative extent follow one another backwards, so they are not contiguous. */
static bool inner_is_contiguous(MPI_Datatype type, int integers, int addresses, int types)
{
    int integer[2];
    MPI_Count lb, extent;
    MPI_Datatype inner;
    if (integers > 2 || addresses != 0 || types != 1 ||
        mpi.Type_get_contents(type, integers, 0, 1, integer, NULL, &inner) != MPI_SUCCESS)
        return false;
    bool contiguous =
        mpi.Type_get_extent_x(inner, &lb, &extent) == MPI_SUCCESS && extent >= 0 && type_is_contiguous(inner);
    int combiner;
    if (mpi.Type_get_envelope(inner, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
        combiner != MPI_COMBINER_NAMED)
        mpi.Type_free(&inner);
    return contiguous;
}

static bool type_is_contiguous(MPI_Datatype type)
{
    MPI_Count size, true_lb, true_extent;
    if (mpi.Type_size_x(type, &size) != MPI_SUCCESS ||
        mpi.Type_get_true_extent_x(type, &true_lb, &true_extent) != MPI_SUCCESS || size != true_extent)
        return false;
    int integers, addresses, types, combiner;
    if (mpi.Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS)
        return false;
    switch (combiner) {
    case MPI_COMBINER_NAMED:
        return true;
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_CONTIGUOUS:
        return inner_is_contiguous(type, integers, addresses, types);
    default:
        return size == 0 || ((uint64_t)size <= PROOF_LIMIT && packing_moves_nothing(type, (uint64_t)size, true_lb));
    }
}

/* The result of type_is_contiguous(), cached with the type. */
static bool is_contiguous_cached(MPI_Datatype type)
{
    int integers, addresses, types, combiner, found = 0;
    if (mpi.Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS)
        return false;
    if (combiner == MPI_COMBINER_NAMED)
        return type_is_contiguous(type);
    void *cached = NULL;
    if (mpi.Type_get_attr(type, contiguous_keyval, &cached, &found) == MPI_SUCCESS && found)
        return cached == &contiguous_mark;
    bool contiguous = type_is_contiguous(type);
    mpi.Type_set_attr(type, contiguous_keyval, contiguous ? &contiguous_mark : &scattered_mark);
    return contiguous;
}

int shape_of(MPI_Datatype type, struct shape *shape)
{
    MPI_Count size, lb, extent, true_lb, true_extent;
    int outcome = mpi.Type_size_x(type, &size);
    if (outcome == MPI_SUCCESS)
        outcome = mpi.Type_get_extent_x(type, &lb, &extent);
    if (outcome == MPI_SUCCESS)
        outcome = mpi.Type_get_true_extent_x(type, &true_lb, &true_extent);
    if (outcome != MPI_SUCCESS)
        return outcome;
    shape->size = (uint64_t)size;
    shape->true_lb = true_lb;
    shape->contiguous = size == true_extent && is_contiguous_cached(type);
    shape->no_gaps = shape->contiguous && extent == size;
    return MPI_SUCCESS;
}

/* The number of elements for one MPI_Pack. */
static uint64_t piece_elements(uint64_t left, uint64_t size)
{
    uint64_t most = PACK_LIMIT / (size == 0 ? 1 : size);
    return most == 0 || left < most ? left : most;
}

int convert_elements(bool packs, void *elements, uint64_t count, MPI_Datatype type, const struct shape *shape,
                     void *packed)
{
    MPI_Count lb, extent;
    int outcome = mpi.Type_get_extent_x(type, &lb, &extent);
    if (shape->size > PACK_LIMIT)
        return MPI_ERR_COUNT;
    for (uint64_t done = 0, part; outcome == MPI_SUCCESS && done < count; done += part) {
        part = piece_elements(count - done, shape->size);
        void *here = address_plus(elements, (int64_t)done * extent),
             *there = address_plus(packed, (int64_t)(done * shape->size));
        int bytes = (int)(part * shape->size), position = 0;
        if (packs)
            outcome = mpi.Pack(here, (int)part, type, there, bytes, &position, MPI_COMM_SELF);
        else
            outcome = mpi.Unpack(there, bytes, &position, here, (int)part, type, MPI_COMM_SELF);
    }
    return outcome;
}

/* ---- bounce buffers: a few are kept, since a program usually needs them at every call ---- */

struct bounce {
    size_t bytes;
    bool shared; /* from outboard_alloc, else scratch */
    struct bounce *next;
    _Alignas(64) unsigned char memory[];
};

static pthread_mutex_t bounce_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bounce *free_list;
static int free_count;

static void bounce_free(struct bounce *bounce)
{
    if (bounce->shared)
        outboard.dealloc(library_context(), bounce);
    else
        scratch_free(bounce);
}

/* Removes the smallest free buffer with at least `bytes` from the list. */
static struct bounce *take_smallest(size_t bytes)
{
    struct bounce **least = NULL;
    for (struct bounce **at = &free_list; *at != NULL; at = &(*at)->next)
        if ((*at)->bytes >= bytes && (least == NULL || (*at)->bytes < (*least)->bytes))
            least = at;
    if (least == NULL)
        return NULL;
    struct bounce *taken = *least;
    *least = taken->next;
    free_count--;
    return taken;
}

void *bounce_acquire(size_t bytes)
{
    pthread_mutex_lock(&bounce_lock);
    struct bounce *fit = take_smallest(bytes);
    pthread_mutex_unlock(&bounce_lock);
    if (fit != NULL)
        return fit->memory;
    void *allocated = NULL;
    bool shared = outboard.alloc(library_context(), sizeof(struct bounce) + bytes, &allocated) == OUTBOARD_OK;
    if (!shared)
        allocated = scratch_allocate(sizeof(struct bounce) + bytes);
    if (allocated == NULL)
        return NULL;
    struct bounce *made = allocated;
    made->bytes = bytes;
    made->shared = shared;
    return made->memory;
}

void bounce_release(void *memory)
{
    struct bounce *bounce = address_plus(memory, -(int64_t)offsetof(struct bounce, memory)), *surplus = NULL;
    if (bounce->bytes > BOUNCE_FREE_BYTES_MAX) {
        bounce_free(bounce);
        return;
    }
    pthread_mutex_lock(&bounce_lock);
    bounce->next = free_list;
    free_list = bounce;
    free_count++;
    if (free_count > BOUNCES_FREE_MAX)
        surplus = take_smallest(0);
    pthread_mutex_unlock(&bounce_lock);
    if (surplus != NULL)
        bounce_free(surplus);
}

/* A duplicate of a datatype is looked at again. */
static int copy_nothing(MPI_Datatype type, int keyval, void *extra, void *from, void *to, int *flag)
{
    (void)type, (void)keyval, (void)extra, (void)from, (void)to;
    *flag = 0;
    return MPI_SUCCESS;
}

static int delete_nothing(MPI_Datatype type, int keyval, void *attribute, void *extra)
{
    (void)type, (void)keyval, (void)attribute, (void)extra;
    return MPI_SUCCESS;
}

int memory_start(void)
{
    return mpi.Type_create_keyval(copy_nothing, delete_nothing, &contiguous_keyval, NULL);
}

void memory_stop(void)
{
    while (free_list != NULL) {
        struct bounce *bounce = free_list;
        free_list = bounce->next;
        free_count--;
        bounce_free(bounce);
    }
    mpi.Type_free_keyval(&contiguous_keyval);
}
