/* Shared by the ranks in C. A failing EXPECT ends the program with the line. */
#ifndef EXPECT_H
#define EXPECT_H

#include "outboard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,                   \
                    outboard_last_error());                                                                  \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static inline void wait_and_free(outboard_request *request) {
    EXPECT(outboard_wait(request, -1, NULL) == OUTBOARD_OK);
    EXPECT(outboard_request_free(request) == OUTBOARD_OK);
}

#endif
