/*
 * methods.c: the method of each collective.
 */
#include "methods.h"
#include "shim.h"

#define METHOD(Name, lower, method, ...) [COLLECTIVE_##lower] = &method,
static const struct method *const methods[COLLECTIVES_KNOWN] = {COLLECTIVES(METHOD)};
#undef METHOD

const struct method *method_of(enum collective collective)
{
    return methods[collective];
}
