// Two-dimensional convolutions of images [batch, channels, HEIGHT, WIDTH] with filters [filters, channels, DOWN, ACROSS], all
// dense and row by row. Each thread sums up elements of the result directly, in fp32 for 16-bit floats; channels, rows
// and columns of the filter follow one another in ascending order.
#pragma once
#include "treadle_gemm.h"

namespace treadle {

// One rank's operands.
template <class T>
struct Images {
    const T *images, *filters;
    T *result;
    int64_t batch, channels, kernels;  // images, their channels, and filters
};

template <class T, int64_t HEIGHT, int64_t WIDTH, int DOWN, int ACROSS, int STRIDE, int PADDING>
struct Convolution {
    static constexpr int64_t ROWS = (HEIGHT + 2 * PADDING - DOWN) / STRIDE + 1;
    static constexpr int64_t COLUMNS = (WIDTH + 2 * PADDING - ACROSS) / STRIDE + 1;

    // Every element of a rank's result, shared out among the threads of its blocks.
    TREADLE_DEVICE static void make(const Task &task, const Images<T> &of) {
        const int64_t step = int64_t(task.blocks) * threads(), elements = of.batch * of.kernels * ROWS * COLUMNS;
        for (int64_t at = int64_t(block_of(task)) * threads() + thread(); at < elements; at += step) {
            const int64_t plane = at / (ROWS * COLUMNS);
            of.result[at] = convert<T>(sum(of, plane / of.kernels, plane % of.kernels, at / COLUMNS % ROWS, at % COLUMNS));
#ifdef TREADLE_COUNT
            count(&Counts::stored, &Counts::stored_bytes, 1, sizeof(T));
#endif
        }
#ifdef TREADLE_COUNT
        // Operands are read again and again; they count once.
        if (block_of(task) == 0 && thread() == 0)
            count(&Counts::loaded, &Counts::loaded_bytes,
                  int(of.channels * (of.batch * HEIGHT * WIDTH + of.kernels * DOWN * ACROSS)), sizeof(T));
#endif
    }

  private:
    TREADLE_DEVICE static Computed<T> sum(const Images<T> &of, int64_t image, int64_t kernel, int64_t row, int64_t column) {
        const int64_t top = row * STRIDE - PADDING, left = column * STRIDE - PADDING;
        Computed<T> total = 0;
        for (int64_t channel = 0; channel < of.channels; ++channel) {
            const T *from = of.images + (image * of.channels + channel) * HEIGHT * WIDTH;
            const T *filter = of.filters + (kernel * of.channels + channel) * DOWN * ACROSS;
            for (int i = 0; i < DOWN; ++i) {
                if (top + i < 0 || top + i >= HEIGHT) continue;
                for (int j = 0; j < ACROSS; ++j)
                    if (left + j >= 0 && left + j < WIDTH)
                        total = multiply_add(total, widen(from[(top + i) * WIDTH + left + j]), widen(filter[i * ACROSS + j]));
            }
        }
        return total;
    }
};

}  // namespace treadle
