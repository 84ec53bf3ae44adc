/* fftw.c: 3-D transforms planned by measuring, there and back, checked against sums by definition. */
#include <complex.h>
#include <fftw3.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
static const double PI = 3.14159265358979323846;
static double value(int at) { return (double)((at * 7919L) % 1009) / 1009 - 0.5; }
int main(int count, char **arguments) {
    int n = count > 1 ? atoi(arguments[1]) : 24, rounds = count > 2 ? atoi(arguments[2]) : 4, total = n * n * n;
    double worst = 0, error = 0;
    for (int round = 0; round < rounds; round++) {
        fftw_complex *in = fftw_alloc_complex(total), *out = fftw_alloc_complex(total);
        fftw_plan there = fftw_plan_dft_3d(n, n, n, in, out, FFTW_FORWARD, FFTW_MEASURE);
        fftw_plan back = fftw_plan_dft_3d(n, n, n, out, in, FFTW_BACKWARD, FFTW_MEASURE);
        for (int at = 0; at < total; at++) in[at] = value(at + round);
        fftw_execute(there);
        for (int probe = 0; probe < 3; probe++) {
            int k[3] = {probe, (5 * probe + 1) % n, (n - 1 - probe) % n};
            double complex sum = 0;
            for (int at = 0; at < total; at++) {
                long turn = (long)(at / n / n) * k[0] + (long)(at / n % n) * k[1] + (long)(at % n) * k[2];
                sum += value(at + round) * cexp(-2 * PI * I * (double)(turn % n) / n);
            }
            worst = fmax(worst, cabs(sum - out[(k[0] * n + k[1]) * n + k[2]]));
        }
        fftw_execute(back);
        for (int at = 0; at < total; at++) error = fmax(error, cabs(in[at] / total - value(at + round)));
        fftw_destroy_plan(there);
        fftw_destroy_plan(back);
        fftw_free(in);
        fftw_free(out);
    }
    int good = worst < 1e-6 && error < 1e-10;
    printf("%s\n", good ? "right" : "wrong");
    return !good;
}
