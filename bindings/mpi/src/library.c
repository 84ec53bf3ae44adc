/*
 * library.c: finds liboutboard at run time, and attaches this process.
 *
 * The library is looked up, never linked: a program under the shim must run natively if it is missing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

struct outboard_library outboard;
static outboard_context *context;

bool library_load(char *message, size_t message_bytes)
{
    const char *path = getenv("OUTBOARD_LIBRARY");
    if (path == NULL || path[0] == '\0')
        path = "liboutboard.so.1";
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(message, message_bytes, "%s; set OUTBOARD_LIBRARY to the path of liboutboard.so", dlerror());
        return false;
    }
#define FIND(name)                                                                                                     \
    *(void **)&outboard.name = dlsym(handle, "outboard_" #name);                                                       \
    if (outboard.name == NULL) {                                                                                       \
        snprintf(message, message_bytes, "%s lacks outboard_%s; install the liboutboard.so of this release", path,     \
                 #name);                                                                                               \
        return false;                                                                                                  \
    }
    OUTBOARD_FUNCTIONS(FIND)
#undef FIND
    int version = outboard.abi_version();
    if (version != OUTBOARD_ABI_VERSION) {
        snprintf(message, message_bytes, "%s speaks interface version %d, this shim %d; install both from one release",
                 path, version, OUTBOARD_ABI_VERSION);
        return false;
    }
    return true;
}

bool library_attach(char *message, size_t message_bytes)
{
    int outcome = outboard.attach(NULL, &context);
    if (outcome == OUTBOARD_OK)
        return true;
    context = NULL;
    library_error_message(outcome, message, message_bytes);
    return false;
}

void library_detach(void)
{
    if (context != NULL)
        outboard.detach(context);
    context = NULL;
}

outboard_context *library_context(void)
{
    return context;
}

void library_error_message(int outcome, char *message, size_t bytes)
{
    const char *detail = outboard.last_error();
    if (detail != NULL && detail[0] != '\0')
        snprintf(message, bytes, "%s", detail);
    else
        snprintf(message, bytes, "%s", outboard.strerror(outcome));
}
