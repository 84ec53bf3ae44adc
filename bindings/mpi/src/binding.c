/*
 * binding.c: binds a part to the MPI library of the process: finds its functions, its handles and its version.
 *
 * The library is found by the front and never linked. A function that this version of MPI lacks stays NULL: the front
 * then hides the shim's function of that name from the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "binding.h"
#include "mpi.h"

struct mpi_library mpi;
char mpi_name[64];
struct code_range mpi_code;

/* The MPI libraries that were tried, by the beginning of their version strings, with their least versions. */
static const struct {
    const char *beginning, *name;
    int major, minor;
} known[] = {
    {"Open MPI v", "Open MPI", 4, 1},
    {"MPICH Version:", "MPICH", 4, 0},
    {"Intel(R) MPI Library", "Intel MPI", 2021, 0},
};

/* A program may define a PMPI_ name itself, which then stands before the library's. The front's is not meant. */
static void *find_function(void *library, const char *symbol)
{
    Dl_info found, own;
    void *function = dlsym(RTLD_DEFAULT, symbol);
    if (function != NULL && dladdr(function, &found) != 0 && dladdr(&mpi, &own) != 0 &&
        found.dli_fbase != own.dli_fbase)
        return function;
    return dlsym(library, symbol);
}

static void find_functions(void *library)
{
#define FIND(name, ...) *(void **)&mpi.name = find_function(library, "PMPI_" #name);
    MPI_FUNCTIONS(FIND)
    MPI_LATER_FUNCTIONS(FIND)
    CONSTRUCTORS(FIND)
    FIND(Wtime)
    /* Open MPI 4.1 has persistent collectives as an extension. */
#define FIND_INIT(name, suffix)                                                                                        \
    FIND(name##_init##suffix)                                                                                          \
    if (mpi.name##_init##suffix == NULL)                                                                               \
        *(void **)&mpi.name##_init##suffix = find_function(library, "PMPIX_" #name "_init" #suffix);
#define FIND_FORMS(Name, lower, suffix) FIND(Name##suffix) FIND(I##lower##suffix) FIND_INIT(Name, suffix)
#define FIND_COLLECTIVE(Name, lower, ...) FIND_FORMS(Name, lower, ) FIND_FORMS(Name, lower, _c)
    COLLECTIVES(FIND_COLLECTIVE)
    /* A program that is not position-independent has its own copies of these variables. */
#define FIND_VARIABLE(name)                                                                                            \
    mpi.name = dlsym(RTLD_DEFAULT, #name);                                                                             \
    if (mpi.name == NULL)                                                                                              \
        mpi.name = dlsym(library, #name);
    MPI_VARIABLES(FIND_VARIABLE)
}

/* The name of a function or variable that the shim cannot do without and the library lacks; NULL if there is none. */
static const char *find_missing(void)
{
#define CHECK(name, ...)                                                                                               \
    if (mpi.name == NULL)                                                                                              \
        return #name;
    MPI_FUNCTIONS(CHECK)
    MPI_VARIABLES(CHECK)
    CHECK(Wtime)
    return NULL;
}

/* Whether the version is one that the shim was tried with; sets mpi_name. */
static bool version_is_known(char *message, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length, major = 0, minor = 0;
    mpi.Get_library_version(version, &length);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(version, known[i].beginning, strlen(known[i].beginning)) != 0)
            continue;
        const char *digits = version + strlen(known[i].beginning);
        digits += strspn(digits, " \t");
        sscanf(digits, "%d.%d", &major, &minor);
        snprintf(mpi_name, sizeof mpi_name, "%s %.*s", known[i].name, (int)strcspn(digits, " ,\n\t"), digits);
        if (major > known[i].major || (major == known[i].major && minor >= known[i].minor))
            return true;
        snprintf(message, bytes, "the program runs on %s, and the shim is for %s %d.%d and later", mpi_name,
                 known[i].name, known[i].major, known[i].minor);
        return false;
    }
    snprintf(message, bytes, "the program runs on \"%.*s\", and the shim is for Open MPI, MPICH and Intel MPI",
             (int)strcspn(version, "\n"), version);
    return false;
}

static bool bind_library(void *library, struct code_range code, char *message, size_t bytes)
{
    find_functions(library);
    mpi_code = code;
    if (mpi.Get_library_version != NULL && !version_is_known(message, bytes))
        return false;
    const char *missing = find_missing();
    if (missing != NULL)
        snprintf(message, bytes, "the MPI library lacks %s", missing);
    return missing == NULL;
}

static any_function *find_in(const struct interposed *list, const char *name)
{
    while (list->name != NULL && strcmp(list->name, name) != 0)
        list++;
    return list->function;
}

static any_function *find(const char *name)
{
    any_function *found = find_in(collectives_interposed, name);
    return found != NULL ? found : find_in(others_interposed, name);
}

const struct part PART_NAME = {bind_library, find};
