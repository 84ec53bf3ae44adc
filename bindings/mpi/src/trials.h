/*
 * trials.h: when a class of calls is tried both ways, and what follows from it; pure, see trials.c.
 */
#ifndef OUTBOARD_MPI_TRIALS_H
#define OUTBOARD_MPI_TRIALS_H

#include <stdbool.h>
#include <stdint.h>

/* How one call is carried out. */
enum way { NATIVE, OFFLOADED, WAYS };

/* Why calls go the way they go. */
enum why {
    SET,        /* OUTBOARD_CHOICE=offload */
    BUILT_IN,   /* the rule of choice.c */
    REMEMBERED, /* an earlier run left it */
    TRIED,      /* in this run */
    WHYS
};

/* What launches of programs have found so far, as a mean over them. */
struct learnt {
    double seconds[WAYS]; /* 0 where unknown */
    unsigned launches;
    unsigned unfinished;  /* since then: launches that ended before their trial did */
};

/* A trial goes one way for a run of turns, of which the first is not timed: it waits for what the way before it left
 * behind, such as ranks that it let go at different times. */
#define TRIAL_RUN 5
#define TRIAL_TURNS_SHORT (2 * TRIAL_RUN)
#define TRIAL_RUNS 8
#define TRIAL_TURNS (TRIAL_RUNS * TRIAL_RUN)

/* What the members agree on, by the maximum of each entry. */
enum {
    VECTOR_SECONDS = 0,            /* by turn; INFINITY where a rank does not know it yet */
    VECTOR_RUNS = TRIAL_TURNS,     /* by run: the mean of its timed turns on this rank */
    VECTOR_ELAPSED = VECTOR_RUNS + TRIAL_RUNS, /* seconds since MPI_Init, negative, so that the least counts */
    VECTOR_EXCESS,                 /* seconds that other trials have cost so far */
    VECTOR_MARK,                   /* which question of which class this is, */
    VECTOR_UNMARK,                 /* and the negative of it: both are equal on all ranks */
    VECTOR_LENGTH
};

enum trial_state { RESTING, ASKING, TRYING, JUDGING, DECIDED };

struct trial {
    enum trial_state state;
    enum way way;              /* of calls that are no turn of a trial */
    enum why why;
    uint64_t calls;
    uint64_t next;             /* call at which the next trial is asked for */
    uint64_t gap;              /* calls between this trial and the one after */
    int turns;                 /* made in this trial */
    int until;                 /* turns after which the trial is judged */
    int misses;                /* judgements put off, since a rank did not know a time yet */
    int skip;                  /* blocking calls to let pass before the next judgement */
    unsigned serial;           /* number of the trial */
    double charged;            /* seconds that trial_note() has returned for this trial */
    double seconds[TRIAL_TURNS];
    struct learnt before;      /* by earlier launches */
    struct learnt learnt;      /* and with the last trial of this one, as agreed: what decides */
};

/* Where a call stands in a trial: the turn it is, or -1. */
struct turn_of {
    int turn;
    unsigned serial;
};

/* Which way is taken where these are the times of both. */
enum way trial_faster(const double *seconds);
/* Whether enough launches have tried both ways, or one way took twice as long: no other trial is needed to be sure. */
bool trial_sure(const struct learnt *learnt);
/* The first trial is asked for at call number `first`, later where enough launches have tried; 0: never. */
void trial_start(struct trial *trial, enum way way, enum why why, const struct learnt *before, uint64_t first);
/* Counts one call and says its way. A function of the count and of what was agreed alone. */
enum way trial_turn(struct trial *trial, struct turn_of *turn);
/* The time of a turn is known; late ones, of a trial that has ended, count no more. Returns the seconds that this costs
 * as far as this rank can tell: all of a turn that the chosen way would not have taken. */
double trial_note(struct trial *trial, const struct turn_of *turn, double seconds);
/* Whether an agreement is waited for. */
bool trial_waits(const struct trial *trial);
/* Whether a trial has begun and is not over. */
bool trial_open(const struct trial *trial);
/* To be asked once at each blocking call while it waits: whether to agree now. */
bool trial_due(struct trial *trial);
/* This rank's entries; `excess` is all that trials have cost, `elapsed` counts since MPI_Init. */
void trial_fill(const struct trial *trial, unsigned class_key, double excess, double elapsed, double *vector);
/* How many times as many calls as now the communicator must have made before a class asks for a trial again, by the
 * agreed vector: at most 1 if it may ask now. */
double trial_too_early(const double *vector);
/* Takes the agreed vector. Returns, once a trial has ended, the seconds that the slower way has cost, less those that
 * trial_note() has returned, else 0. */
double trial_agree(struct trial *trial, const double *vector);

#endif
