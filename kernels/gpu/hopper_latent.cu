// Latent attention in one pass over the latent, on Hopper (compute capability 9.0):
//
//     softmax(Q Z^T scale) Z         Q [n, d], Z [T, d]
//
// A block takes all n queries of a window and one part of its positions. Both products are
// transposed, so that the 64 rows of a matrix instruction (wgmma) are positions or columns of Z, and
// its columns are the queries, with little padding:
//
//     scores  S^T = Z Q^T            64 positions x n, summed over d
//     sums    O^T = Z^T P^T          d x n, 64 columns at a time, summed over positions
//
// One team of warps loads Z into a ring of slots in shared memory. A second one computes the scores
// and weights (online softmax, arXiv 1805.02867) and half of the sums, a third one the other half. A
// slot has 64 positions x GROUP x 64 columns, in float16 or bfloat16, each 64 x 64 swizzled as wgmma
// reads them; a float8 latent is converted on its way there.
//
// With one part, a block stores the results; with two, it forms a cluster with the other block of its
// window, and each stores half of the columns; with more, each stores its part, for combine.py.
//
// hopper.py defines TEAM (threads), TILE (positions), COLUMNS (of a chunk: 128 bytes, the width of the
// swizzle), WIDTH (d), QUERIES (n, a multiple of 8), GROUP (chunks of a slot), RING (slots), PAGE
// (positions of a page, or 0), BFLOAT16 and FLOAT8 (0 or 1), CLUSTER (blocks whose results are merged, or
// 0), and the instructions add_scores and add_sums.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short half_bits;
#if FLOAT8
typedef unsigned char stored;
#else
typedef half_bits stored;
#endif

constexpr int CHUNKS = WIDTH / COLUMNS;     // of a tile
constexpr int SLOTS = CHUNKS / GROUP;       // of a tile
constexpr int HALF = CHUNKS / 2;            // what a team sums
constexpr int CHUNK_BYTES = TILE * COLUMNS * 2;
constexpr int SLOT_BYTES = GROUP * CHUNK_BYTES;
constexpr int QUERY_BYTES = QUERIES * COLUMNS * 2;  // of a chunk of the queries; of a tile's weights
constexpr int REGISTERS = QUERIES / 2;      // of a thread, for 64 x QUERIES results
constexpr int OWN = QUERIES / 4;            // queries of which a thread has results
#define MINUS_INFINITY __int_as_float(0xff800000)

__device__ __forceinline__ u32 shared_address(const void *p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// -- barriers in shared memory -----------------------------------------------------------------------
__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
template <int BARRIER, int THREADS> __device__ __forceinline__ void sync() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// -- copies and matrix instructions ------------------------------------------------------------------
// what was written or copied to shared memory before is seen by matrix instructions after
__device__ __forceinline__ void fence_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// 16 bytes; zeros unless `bytes` is 16
__device__ __forceinline__ void copy(u32 to, const void *from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void store(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_end() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int N> __device__ __forceinline__ void settle(float (&registers)[N]) {
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
// of a matrix whose rows are 128 bytes, swizzled; 8 rows are 1024 bytes
__device__ __forceinline__ u64 descriptor(u32 address) {
    return u64(1) << 62 | u64(1024 >> 4) << 32 | u64(1) << 16 | (address & 0x3FFFF) >> 4;
}
__device__ __forceinline__ u32 swizzled(u32 row, u32 unit) {  // a unit is 16 bytes
    return row * 128 + ((unit ^ (row & 7)) << 4);
}

// -- numbers -----------------------------------------------------------------------------------------
__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ half_bits to_half(float x) {
    half_bits y;
#if BFLOAT16
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
#endif
    return y;
}
__device__ __forceinline__ u32 halves_of_float8(u32 two) {  // the low 16 bits: two e4m3
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(half_bits(two)));
    return halves;
}
// over the 8 lanes that have results of the same queries
__device__ __forceinline__ float largest_of_lanes(float x) {
    for (int far = 4; far < 32; far *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, far));
    return x;
}
__device__ __forceinline__ float sum_of_lanes(float x) {
    for (int far = 4; far < 32; far *= 2) x += __shfl_xor_sync(~0u, x, far);
    return x;
}

// -- a cluster's blocks ------------------------------------------------------------------------------
__device__ __forceinline__ void sync_cluster() {  // all threads of both blocks
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
__device__ __forceinline__ u32 of_block(u32 address, u32 block) {  // the same place in its memory
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
__device__ __forceinline__ float load_shared(u32 address) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ void store_shared(u32 address, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

struct Place {  // in the ring: the slot, and the parity of its barriers, which changes each round
    u32 slot, parity;
    __device__ __forceinline__ void advance(u32 slots) {
        slot += slots;
        if (slot >= RING) {
            slot -= RING;
            parity ^= 1;
        }
    }
};

// Where the positions of a window are.
struct Positions {
    const stored *latent;
    const i64 *block_table;  // of this window
    i64 page_stride, position_stride;

    __device__ __forceinline__ const stored *at(int position) const {
#if PAGE
        return latent + block_table[position / PAGE] * page_stride +
               position % PAGE * position_stride;
#else
        return latent + position * position_stride;
#endif
    }
};

// The loaders' work: positions [begin, end), a tile after the other, zeros after the end.
__device__ __forceinline__ void load(const Positions &z, int begin, int end, u32 ring, u32 full,
                                     u32 empty) {
    constexpr int UNITS = COLUMNS * sizeof(stored) / 16;  // threads of a row of a chunk
    constexpr int STEP = TEAM / UNITS, ROWS = TILE / STEP;
    const int unit = threadIdx.x % UNITS, first = threadIdx.x % TEAM / UNITS;
    Place place = {0, 0};
    for (int tile = begin; tile < end; tile += TILE) {
        const stored *rows[ROWS];
        bool there[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int position = tile + first + i * STEP;
            there[i] = position < end;
            rows[i] = z.at(there[i] ? position : begin) + unit * (16 / sizeof(stored));
        }
#if FLOAT8
        uint4 next[GROUP][ROWS];
        auto fetch = [&](int slot) {
#pragma unroll
            for (int g = 0; g < GROUP; g++)
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    next[g][i] = make_uint4(0, 0, 0, 0);
                    if (there[i])
                        next[g][i] = __ldcs(reinterpret_cast<const uint4 *>(
                            rows[i] + (slot * GROUP + g) * COLUMNS));
                }
        };
        fetch(0);
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            uint4 bytes[GROUP][ROWS];
#pragma unroll
            for (int g = 0; g < GROUP; g++)
#pragma unroll
                for (int i = 0; i < ROWS; i++) bytes[g][i] = next[g][i];
            if (slot + 1 < SLOTS) fetch(slot + 1);
            wait(empty + 8 * place.slot, place.parity ^ 1);
#pragma unroll
            for (int g = 0; g < GROUP; g++)
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    const uint4 b = bytes[g][i];
                    const u32 to = ring + place.slot * SLOT_BYTES + g * CHUNK_BYTES;
                    const int row = first + i * STEP;
                    store(to + swizzled(row, 2 * unit), halves_of_float8(b.x),
                          halves_of_float8(b.x >> 16), halves_of_float8(b.y),
                          halves_of_float8(b.y >> 16));
                    store(to + swizzled(row, 2 * unit + 1), halves_of_float8(b.z),
                          halves_of_float8(b.z >> 16), halves_of_float8(b.w),
                          halves_of_float8(b.w >> 16));
                }
            fence_shared();
            arrive(full + 8 * place.slot);
            place.advance(1);
        }
#else
        for (int slot = 0; slot < SLOTS; slot++) {
            wait(empty + 8 * place.slot, place.parity ^ 1);
            const u32 to = ring + place.slot * SLOT_BYTES;
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int g = 0; g < GROUP; g++)  // adjacent bytes, one after the other
                    copy(to + g * CHUNK_BYTES + swizzled(first + i * STEP, unit),
                         rows[i] + (slot * GROUP + g) * COLUMNS, there[i] ? 16 : 0);
            arrive_when_copied(full + 8 * place.slot);
            place.advance(1);
        }
#endif
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Grid: windows, splits. Shared memory, from 1024 bytes on: the ring, the queries, two tiles of
// weights, two of factors, what 4 warps reduce, and the barriers: hopper.py.
extern "C" __global__ void __cluster_dims__(1, CLUSTER ? CLUSTER : 1, 1)
    __launch_bounds__(3 * TEAM, 1) attend(
    const half_bits *__restrict__ queries,   // rows and heads as strided
    const stored *__restrict__ latent,       // [S, T, d]
    const float *__restrict__ row_factors,   // [S, T], in float8
    const i64 *__restrict__ slots,           // [B], or null
    const i64 *__restrict__ block_table,     // [B, pages], with PAGE
    const i64 *__restrict__ lengths,         // [B], or null
    float *__restrict__ sums,                // without CLUSTER: [B, group * heads, splits, d]
    float *__restrict__ stats,               // [B, group * heads, splits, 2]: see combine.py
    half_bits *__restrict__ out,             // with CLUSTER: rows and heads as strided
    i64 query_row_stride, i64 query_head_stride, i64 out_row_stride, i64 out_head_stride,
    i64 slot_stride, i64 position_stride, i64 factor_stride, i64 table_stride, float scale_log2, int heads, int group, int positions,
    int splits) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 ring = shared_address(memory);
    const u32 query_chunks = ring + RING * SLOT_BYTES;
    const u32 weights = query_chunks + CHUNKS * QUERY_BYTES;
    float *factors = reinterpret_cast<float *>(memory + RING * SLOT_BYTES + (CHUNKS + 2) * QUERY_BYTES);
    float *reduced = factors + 2 * QUERIES;  // [4][QUERIES]
    const u32 full = shared_address(reduced + 4 * QUERIES), empty = full + 8 * RING;

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int team = __shfl_sync(~0u, warp / 4, 0);
    const i64 window = blockIdx.x;
    const int split = blockIdx.y, window_queries = heads * group;
    const int length = lengths ? int(lengths[window]) : positions;
    const int share = ((length + splits - 1) / splits + TILE - 1) / TILE * TILE;
    const int begin = split * share, end = min(begin + share, length);
    const i64 part = window * window_queries * splits + split;
    if (!CLUSTER && begin >= end) {
        if (thread < window_queries) {
            float *stat = stats + (part + i64(thread) * splits) * 2;
            stat[0] = MINUS_INFINITY;
            stat[1] = 0.0f;
        }
        return;
    }
    if (thread == 0) {
        for (int i = 0; i < RING; i++) {
            init_barrier(full + 8 * i, TEAM);
            init_barrier(empty + 8 * i, 4);  // warps
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    const i64 cache_slot = slots ? slots[window] : window;
    if (team == 2) {
        const stored *first = latent + (PAGE ? 0 : cache_slot * slot_stride);
        const Positions z = {first, block_table + window * table_stride, slot_stride, position_stride};
        load(z, begin, end, ring, full, empty);
        if (CLUSTER == 2) {
            __syncwarp();
            sync_cluster();
            sync_cluster();
        }
        return;
    }

    for (int i = thread; i < QUERIES * WIDTH / 8; i += 2 * TEAM) {
        const int query = i / (WIDTH / 8), unit = i % (WIDTH / 8);
        const bool there = query < window_queries;
        const i64 row = there ? window * group + query / heads : 0, head = there ? query % heads : 0;
        copy(query_chunks + unit / 8 * QUERY_BYTES + swizzled(query, unit % 8),
             queries + row * query_row_stride + head * query_head_stride + unit * 8, there ? 16 : 0);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_shared();
    sync<2, 2 * TEAM>();

    // Of a product, a thread has rows `row` and `row` + 8, and of each 8 queries two: `query(i)`.
    const int row = warp % 4 * 16 + lane / 4;
    auto query = [&](int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; };
    float acc[HALF][REGISTERS];
    float maximum[OWN], weight_sum[OWN], rescale[OWN];
#pragma unroll
    for (int c = 0; c < HALF; c++)
#pragma unroll
        for (int i = 0; i < REGISTERS; i++) acc[c][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        maximum[i] = MINUS_INFINITY;
        weight_sum[i] = 0.0f;
    }

    Place place = {0, 0};
    u32 turn = 0;  // which of two tiles of weights
    for (int tile = begin; tile < end; tile += TILE, turn ^= 1) {
        const u32 tile_weights = weights + turn * QUERY_BYTES;
        float *tile_factors = factors + turn * QUERIES;
        if (team == 0) {
            float s[REGISTERS];
#pragma unroll
            for (int i = 0; i < REGISTERS; i++) s[i] = 0.0f;
            const int position = tile + row;
            const bool there = position < end, there8 = position + 8 < end;
            float factor = 1.0f, factor8 = 1.0f;
#if FLOAT8
            auto factor_of = [&](int p) {
                return PAGE ? row_factors[block_table[window * table_stride + p / max(PAGE, 1)] *
                                              factor_stride + p % max(PAGE, 1)]
                            : row_factors[cache_slot * factor_stride + p];
            };
            if (there) factor = factor_of(position);
            if (there8) factor8 = factor_of(position + 8);
#endif
            Place next = place;
#pragma unroll 1
            for (int slot = 0; slot < SLOTS; slot++) {
                wait(full + 8 * next.slot, next.parity);
                fence_shared();
                const u64 z = descriptor(ring + next.slot * SLOT_BYTES);
                const u64 q = descriptor(query_chunks + slot * GROUP * QUERY_BYTES);
                products_begin();
#pragma unroll
                for (int k = 0; k < 4 * GROUP; k++)  // 16 columns: 32 bytes of a chunk
                    add_scores(s, z + (k / 4 * CHUNK_BYTES >> 4) + k % 4 * 2,
                               q + (k / 4 * QUERY_BYTES >> 4) + k % 4 * 2);
                products_end();
                next.advance(1);
            }
            products_wait<0>();
            settle(s);

            float largest[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                float &a = s[i / 2 * 4 + i % 2], &b = s[i / 2 * 4 + i % 2 + 2];
                a = there ? a * (scale_log2 * factor) : MINUS_INFINITY;
                b = there8 ? b * (scale_log2 * factor8) : MINUS_INFINITY;
                largest[i] = largest_of_lanes(fmaxf(a, b));
                if (lane < 4) reduced[warp * QUERIES + query(i)] = largest[i];
            }
            sync<1, TEAM>();
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const int n = query(i);
                float most = maximum[i];
#pragma unroll
                for (int w = 0; w < 4; w++) most = fmaxf(most, reduced[w * QUERIES + n]);
                rescale[i] = power_of_2(maximum[i] - most);
                maximum[i] = most;
                const float a = power_of_2(s[i / 2 * 4 + i % 2] - most);
                const float b = power_of_2(s[i / 2 * 4 + i % 2 + 2] - most);
                weight_sum[i] = weight_sum[i] * rescale[i] + a + b;
                const u32 to = tile_weights + row % 8 * 2;
                asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + swizzled(n, row / 8)),
                             "h"(to_half(a * factor))
                             : "memory");
                asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + swizzled(n, row / 8 + 1)),
                             "h"(to_half(b * factor8))
                             : "memory");
                if (thread < 4) tile_factors[n] = rescale[i];
            }
            fence_shared();
            sync<2, 2 * TEAM>();
        } else {
            sync<2, 2 * TEAM>();
            fence_shared();
#pragma unroll
            for (int i = 0; i < OWN; i++) rescale[i] = tile_factors[query(i)];
        }

#pragma unroll
        for (int c = 0; c < HALF; c++)
#pragma unroll
            for (int i = 0; i < REGISTERS; i++) acc[c][i] *= rescale[i / 4 * 2 + i % 2];
        Place next = place;
        if (team) next.advance(SLOTS / 2);
        u32 before = 0;
#pragma unroll
        for (int slot = 0; slot < SLOTS / 2; slot++) {
            const u64 z = descriptor(ring + next.slot * SLOT_BYTES);
            const u64 p = descriptor(tile_weights);
            products_begin();
#pragma unroll
            for (int g = 0; g < GROUP; g++)
#pragma unroll
                for (int k = 0; k < TILE / 16; k++)  // 16 positions: 2048 bytes of Z, 32 of weights
                    add_sums(acc[slot * GROUP + g], z + (g * CHUNK_BYTES >> 4) + 128 * k, p + 2 * k);
            products_end();
            if (slot > 0) {
                products_wait<1>();
                if (lane == 0) arrive(empty + 8 * before);
            }
            before = next.slot;
            next.advance(1);
        }
        products_wait<0>();
        if (lane == 0) arrive(empty + 8 * before);
#pragma unroll
        for (int c = 0; c < HALF; c++) settle(acc[c]);
        place.advance(SLOTS);
    }

    float *own_maximum = factors, *own_sum = factors + QUERIES;
    if (CLUSTER) sync<2, 2 * TEAM>();  // the last factors are read
    if (team == 0) {
        sync<1, TEAM>();  // the last maxima are read
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            weight_sum[i] = sum_of_lanes(weight_sum[i]);
            if (lane < 4) reduced[warp * QUERIES + query(i)] = weight_sum[i];
        }
        sync<1, TEAM>();
        if (thread < 4) {
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const int n = query(i);
                float total = 0.0f;
                for (int w = 0; w < 4; w++) total += reduced[w * QUERIES + n];
                if (CLUSTER) {
                    own_maximum[n] = maximum[i];
                    own_sum[n] = total;
                } else if (n < window_queries) {
                    float *stat = stats + (part + i64(n) * splits) * 2;
                    stat[0] = maximum[i];
                    stat[1] = total;
                }
            }
        }
    }
    const int columns = team * HALF * COLUMNS + row;  // the first of the results, and 8 further
#if !CLUSTER
#pragma unroll
    for (int i = 0; i < REGISTERS; i++) {
        const int n = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (n >= window_queries) continue;
        float *to = sums + (part + i64(n) * splits) * WIDTH + columns + i / 2 % 2 * 8;
#pragma unroll
        for (int c = 0; c < HALF; c++) to[c * COLUMNS] = acc[c][i];
    }
#else
    const u32 other = CLUSTER == 2 ? 1 - split : 0;
    if (CLUSTER == 2)
        sync_cluster();  // both blocks have finished with their rings
    else
        sync<2, 2 * TEAM>();
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int n = query(i);
        float most = own_maximum[n], total = own_sum[n], factor = 1.0f;
        if (CLUSTER == 2) {
            const float far = load_shared(of_block(shared_address(own_maximum + n), other));
            const float far_sum = load_shared(of_block(shared_address(own_sum + n), other));
            const float larger = fmaxf(most, far);
            factor = total > 0.0f ? power_of_2(most - larger) : 0.0f;
            total *= factor;
            if (far_sum > 0.0f) total += power_of_2(far - larger) * far_sum;
        }
        rescale[i] = total > 0.0f ? factor / total : 0.0f;  // no position: zeros
    }
#pragma unroll
    for (int c = 0; c < HALF; c++)
#pragma unroll
        for (int i = 0; i < REGISTERS; i++) acc[c][i] *= rescale[i / 4 * 2 + i % 2];
    if (CLUSTER == 2) {  // the second team's results go to the second block, the first's to the first
        const u32 exchange = ring + thread % TEAM * 4;
        if (team != split) {
            const u32 to = of_block(exchange, other);
#pragma unroll
            for (int c = 0; c < HALF; c++)
#pragma unroll
                for (int i = 0; i < REGISTERS; i++)
                    store_shared(to + (c * REGISTERS + i) * TEAM * 4, acc[c][i]);
        }
        sync_cluster();
        if (team != split) return;
#pragma unroll
        for (int c = 0; c < HALF; c++)
#pragma unroll
            for (int i = 0; i < REGISTERS; i++)
                acc[c][i] += load_shared(exchange + (c * REGISTERS + i) * TEAM * 4);
    }
#pragma unroll
    for (int i = 0; i < REGISTERS; i++) {
        const int n = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (n >= window_queries) continue;
        half_bits *to = out + (window * group + n / heads) * out_row_stride +
                        n % heads * out_head_stride + columns + i / 2 % 2 * 8;
#pragma unroll
        for (int c = 0; c < HALF; c++) to[c * COLUMNS] = to_half(acc[c][i]);
    }
#endif
}
