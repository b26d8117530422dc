#pragma once
#include <stdint.h>

// Quantises rows of weights x [rows, cols] to bits (4 or 8) with one binary16 scale, and with zeros one zero point, for each
// group of at most 128 inputs. weight [cols] says how much an error of each input counts, or is null. Errors and values
// squared are added to noise and signal. Returns 0, 1 for a value that is not finite, 2 where no scale fits binary16.
int quant_rows(const float *x, int32_t rows, int32_t cols, int32_t group, int32_t bits, int32_t zeros, const float *weight, uint8_t *codes, uint16_t *scales, uint8_t *zero_points, double *noise, double *signal);
