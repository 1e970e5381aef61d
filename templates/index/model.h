// Linear models in whole numbers. A position never decreases with the key and is the same wherever it is computed, up
// to the ends of 64 bits; twice the positions are one bit more of the same product.
namespace inside {

__extension__ typedef unsigned __int128 Wide;  // no warning of -pedantic

struct Model {
    uint64_t base = 0, span = 0;  // keys below base count as base, and those above base + span as that
    uint64_t factor = 0;
    uint8_t before = 0, after = 63;

    uint64_t operator()(uint64_t key) const {
        uint64_t offset = key > base ? key - base : 0;
        offset = offset < span ? offset : span;
        return at(offset);
    }

    uint64_t at(uint64_t offset) const {
        return uint64_t(static_cast<Wide>(offset << before) * factor >> 64) >> after;
    }

    // Smallest offset from base that has at least this position; false where there is none.
    bool offset_of(uint64_t position, uint64_t* offset) const {
        if (!factor || (position << after) >> after != position) return false;
        const auto product = static_cast<Wide>(position << after) << 64;
        const auto shifted = product / factor + (product % factor != 0);
        if (shifted >> 64) return false;
        const uint64_t whole = uint64_t(shifted);
        *offset = (whole >> before) + ((whole & ((uint64_t(1) << before) - 1)) != 0);
        return true;
    }

    // Smallest key of a position above 0.
    uint64_t first_key(uint64_t position) const {
        uint64_t offset = 0;
        if (!offset_of(position, &offset) || offset > ~base) return UINT64_MAX;
        return base + offset;
    }

    // `slope` positions for each key above base, from 0 to slots - 1.
    static Model line(uint64_t base, uint64_t last, long double slope, uint64_t slots) {
        Model model;
        model.base = base;
        model.span = last > base ? last - base : 0;
        if (slope > (long double)slots) slope = (long double)slots;
        if (!(slope > 0)) return model;
        const long double reach = (long double)slots / slope;
        if (reach < (long double)model.span) model.span = uint64_t(reach);
        model.before = uint8_t(__builtin_clzll(model.span | 1));
        const long double scaled = ldexpl(slope, 64 - model.before);
        int exponent;
        frexpl(scaled, &exponent);
        model.after = uint8_t(exponent < 1 ? 63 : exponent > 64 ? 0 : 64 - exponent);
        model.factor = uint64_t(ldexpl(scaled, model.after));
        uint64_t beyond;
        if (model.offset_of(slots, &beyond) && beyond <= model.span) model.span = beyond - 1;
        return model;
    }

    // Equal parts of a range.
    static Model over(Range range, uint64_t slots) {
        const long double keys = (long double)(range.last - range.first) + 1;
        return line(range.first, range.last, (long double)slots / keys, slots);
    }
};

// Least squares of rank on key, scaled from n ranks to `used` of the slots; keys ascend. Where the line reaches 0 is the
// base.
inline Model fitted(const uint64_t* keys, uint64_t n, uint64_t used, uint64_t slots) {
    const uint64_t zero = keys[0];
    if (n == 1) return Model::line(zero, zero, 0, slots);
    double mean = 0;
    for (uint64_t i = 0; i < n; ++i) mean += double(keys[i] - zero);
    mean /= double(n);
    const double middle = double(n - 1) / 2;
    double squares = 0, products = 0;
    for (uint64_t i = 0; i < n; ++i) {
        const double x = double(keys[i] - zero) - mean;
        squares += x * x;
        products += x * (double(i) - middle);
    }
    double slope = products / squares;  // per rank
    if (!(slope > 0)) slope = 1 / (double(keys[n - 1] - zero) + 1);
    const double at_zero = middle - slope * mean;
    const double shift = at_zero / slope;
    uint64_t base = zero;
    if (shift < 0) {
        base = -shift < double(keys[n - 1] - zero) ? zero + uint64_t(-shift) : keys[n - 1];
    } else if (shift <= double(zero)) {
        base = uint64_t(shift) < zero ? zero - uint64_t(shift) : 0;
    } else {  // the line through key 0
        base = 0;
        squares = products = 0;
        for (uint64_t i = 0; i < n; ++i) {
            const double x = double(keys[i]);
            squares += x * x;
            products += x * double(i);
        }
        slope = squares > 0 ? products / squares : 0;
    }
    // a bit more, so that a key that falls on a position exactly is not rounded below it
    const long double scaled = (long double)slope * (long double)used / (long double)n * (1 + 0x1p-50L);
    return Model::line(base, UINT64_MAX, scaled, slots);
}

}  // namespace inside
