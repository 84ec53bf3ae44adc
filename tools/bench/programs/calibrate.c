/*
 * calibrate.c: runs the compute loop alone. The harness starts one process per rank, on the cores of the ranks. It
 * sends "run INSTANT_NS UNITS", and each process answers "ran ELAPSED_NS". A process ends when the harness closes the
 * line.
 *
 * Usage: calibrate CONTROL_SOCKET CORE, CORE -1 for no binding.
 */
#include "compute.h"
#include "control.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    char text[128];
    if (argc != 3) {
        fprintf(stderr, "usage: calibrate CONTROL_SOCKET CORE\n");
        return 2;
    }
    const int core = atoi(argv[2]);
    if (core >= 0 && core_bind(0, core) != 0)
        return 1;
    const int harness = control_connect(argv[1]);
    if (harness < 0)
        return 1;
    while (control_receive(harness, text, sizeof text) == 0) {
        int64_t instant;
        uint64_t units;
        if (sscanf(text, "run %" SCNd64 " %" SCNu64, &instant, &units) != 2) {
            fprintf(stderr, "not an order: %s\n", text);
            return 1;
        }
        clock_sleep_until_ns(instant);
        compute_units(units);
        /* The time counts from the common instant: a process that shares a core may get it only after another has
         * ended. */
        if (control_send(harness, "ran %" PRId64 "\n", clock_now_ns() - instant) != 0)
            return 1;
    }
    return 0;
}
