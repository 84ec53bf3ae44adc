/*
 * front.c: the only part of the shim that a program sees: MPI's names, without an MPI.
 *
 * The front links to no MPI library. At the first call it finds the library that the process has, also one that Python
 * opened privately, and fills each slot: with the function of the shim's part for that library, or with the library's
 * own function. Without a part for the library, programs run natively.
 *
 * The shim stands before both names of a function. A tool may define MPI_Wait and call PMPI_Wait; Open MPI's Fortran
 * library calls PMPI_ names alone. A tool below the shim still sees every MPI_ call, since the slot of such a name
 * points to the tool. The PMPI_ name leads back here.
 *
 * Names that the library lacks are removed from the front's symbol table as soon as the library is known, so a program
 * that asks for them gets the answer that it gets natively. Python opens the library first and then its own module,
 * which asks: so the front also stands before dlopen(), which it jumps to.
 *
 *   slot       entered by            left by
 *   first      the loader            front_resolve, once
 *   resolved   front_resolve         never
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../names.h"
#include "../part.h"
#include "trampolines.h"

typedef void *open_function(const char *, int);

void front_resolve(void) __attribute__((visibility("hidden"), used));
open_function *front_before_dlopen(void) __attribute__((visibility("hidden"), used));

#define BOTH(X, name) X(MPI_##name, name) X(PMPI_##name, name)
#define ALL_FORMS(X, Name, lower) BOTH(X, Name) BOTH(X, I##lower) BOTH(X, Name##_init)
#define ALL_LARGE_FORMS(X, Name, lower) BOTH(X, Name##_c) BOTH(X, I##lower##_c) BOTH(X, Name##_init_c)
#define EXTENSION(X, Name) X(MPIX_##Name##_init, Name##_init) X(PMPIX_##Name##_init, Name##_init)

#define DEFINE(name) BOTH(TRAMPOLINE, name)
#define DEFINE_COLLECTIVE(Name, lower, ...)                                                                            \
    ALL_FORMS(TRAMPOLINE, Name, lower) ALL_LARGE_FORMS(TRAMPOLINE, Name, lower) EXTENSION(TRAMPOLINE, Name)
OTHERS(DEFINE)
CONSTRUCTORS(DEFINE)
COLLECTIVES(DEFINE_COLLECTIVE)

struct export {
    const char *symbol;
    const char *name; /* without the prefix */
    any_function *trampoline;
    any_function *volatile *slot;
};

#define ENTRY(symbol, name) {#symbol, #name, symbol, &slot_##symbol},
#define LIST(name) BOTH(ENTRY, name)
#define LIST_COLLECTIVE(Name, lower, ...)                                                                              \
    ALL_FORMS(ENTRY, Name, lower) ALL_LARGE_FORMS(ENTRY, Name, lower) EXTENSION(ENTRY, Name)
static const struct export exports[] = {OTHERS(LIST) CONSTRUCTORS(LIST) COLLECTIVES(LIST_COLLECTIVE)};
#define EXPORTS (sizeof exports / sizeof *exports)

/* ---- the MPI library ---- */

struct found_library {
    void *handle; /* of dlopen(); NULL if there is no MPI library */
    uintptr_t base;
    struct code_range code;
};

/* Sets the code of the library whose first address is `base`. */
static int find_code(struct dl_phdr_info *object, size_t size, void *data)
{
    struct found_library *library = data;
    (void)size;
    for (int i = 0; object->dlpi_addr == library->base && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && (header->p_flags & PF_X) != 0)
            library->code = (struct code_range){object->dlpi_addr + header->p_vaddr, header->p_memsz};
    }
    return 0;
}

/* The loaded library that defines this address. */
static struct found_library library_of(const void *address)
{
    struct found_library library = {NULL, 0, {0, 0}};
    Dl_info where;
    struct link_map *map;
    if (dladdr1(address, &where, (void **)&map, RTLD_DL_LINKMAP) == 0)
        return library;
    library.handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    library.base = map->l_addr;
    dl_iterate_phdr(find_code, &library);
    return library;
}

/* A library that Python opened privately is in no scope that dlsym() searches for this object, so all loaded libraries
 * are asked. */
static void *find_private(const char *symbol)
{
    void *found = NULL, *self = dlopen(NULL, RTLD_LAZY);
    struct link_map *map;
    if (self == NULL || dlinfo(self, RTLD_DI_LINKMAP, &map) != 0)
        return NULL;
    for (; map != NULL && found == NULL; map = map->l_next) {
        const char *last = strrchr(map->l_name, '/');
        if (last == NULL || strncmp(last, "/libmpi", 7) != 0)
            continue;
        void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
        found = handle == NULL ? NULL : dlsym(handle, symbol);
        if (handle != NULL)
            dlclose(handle);
    }
    dlclose(self);
    return found;
}

static struct found_library find_library(void)
{
    void *address = dlsym(RTLD_NEXT, "PMPI_Init");
    if (address == NULL)
        address = find_private("PMPI_Init");
    return address == NULL ? (struct found_library){NULL, 0, {0, 0}} : library_of(address);
}

/* ---- names that the library lacks ---- */

/* Removes the name from this object's symbol table: a symbol with the value 0 is not found by the loader. */
static void hide(const struct export *export)
{
    Dl_info where;
    ElfW(Sym) *symbol = NULL;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (dladdr1((const void *)(uintptr_t)export->trampoline, &where, (void **)&symbol, RTLD_DL_SYMENT) == 0 ||
        symbol == NULL || where.dli_sname == NULL || strcmp(where.dli_sname, export->symbol) != 0)
        return;
    uintptr_t start = (uintptr_t)symbol & -page, end = (uintptr_t)(symbol + 1);
    if (mprotect((void *)start, end - start, PROT_READ | PROT_WRITE) != 0)
        return;
    symbol->st_value = 0;
    mprotect((void *)start, end - start, PROT_READ);
}

static void hide_lacking(const struct found_library *library)
{
    for (size_t i = 0; i < EXPORTS; i++)
        if (dlsym(library->handle, exports[i].symbol) == NULL)
            hide(&exports[i]);
}

/* The loader runs this function before the program begins. Python opens the library later. */
static void __attribute__((constructor)) hide_when_known(void)
{
    static atomic_bool hidden;
    static _Thread_local bool busy; /* this function opens libraries itself */
    if (busy || atomic_load_explicit(&hidden, memory_order_relaxed))
        return;
    busy = true;
    struct found_library library = find_library();
    if (library.handle != NULL && !atomic_exchange(&hidden, true))
        hide_lacking(&library);
    if (library.handle != NULL)
        dlclose(library.handle);
    busy = false;
}

open_function *front_before_dlopen(void)
{
    static open_function *volatile next;
    if (next == NULL)
        next = (open_function *)(uintptr_t)dlsym(RTLD_NEXT, "dlopen");
    hide_when_known();
    return next;
}

/* ---- the slots ---- */

static void __attribute__((noreturn)) end_without_mpi(void)
{
    fprintf(stderr, "outboard: the program calls MPI, and no MPI library is loaded; link the program to one\n");
    exit(127);
}

/* Launchers number their ranks in one of these variables before MPI does. */
static bool is_first_rank(void)
{
    static const char *const variables[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *rank = getenv(variables[i]);
        if (rank != NULL)
            return strcmp(rank, "0") == 0;
    }
    return true;
}

static const struct part *part_of(void *library)
{
    if (dlsym(library, "ompi_mpi_comm_world") != NULL)
        return &part_openmpi;
    Dl_info where;
    const void *init = dlsym(library, "PMPI_Init");
    if (init != NULL && dladdr(init, &where) != 0 && strstr(where.dli_fname, "libmpi_abi") != NULL)
        return &part_abi;
    return &part_mpich;
}

/* The function behind this name: that of a tool below the shim, the shim's, or the library's. */
static any_function *function_for(const struct export *export, const struct part *part,
                                  const struct found_library *library)
{
    void *own = dlsym(library->handle, export->symbol), *next = NULL;
    any_function *shims = part == NULL ? NULL : part->find(export->name);
    if (own == NULL)
        return end_without_mpi;
    if (export->symbol[0] == 'M')
        next = dlsym(RTLD_NEXT, export->symbol);
    if (next != NULL && next != own)
        return (any_function *)(uintptr_t)next;
    return shims != NULL ? shims : (any_function *)(uintptr_t)own;
}

static void resolve(void)
{
    char message[256];
    struct found_library library = find_library();
    if (library.handle == NULL)
        end_without_mpi();
    hide_when_known();
    const struct part *part = part_of(library.handle);
    if (!part->bind(library.handle, library.code, message, sizeof message)) {
        if (is_first_rank())
            fprintf(stderr, "outboard: collectives run natively: %s\n", message);
        part = NULL;
    }
    for (size_t i = 0; i < EXPORTS; i++)
        *exports[i].slot = function_for(&exports[i], part, &library);
}

void front_resolve(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, resolve);
}
