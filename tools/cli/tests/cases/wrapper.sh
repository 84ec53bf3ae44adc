#!/bin/bash
# right: a shell script that ends in `exec PROGRAM` starts one job of N ranks, as below mpirun
exec "$PROGRAM" "$@"
