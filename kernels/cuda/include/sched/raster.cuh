// Which tile of the result does a block compute?
//
// Blocks that run at the same time should share rows of A and columns of B in L2, so they are taken along one
// side of a band of `group` tiles of the other. The grid is one long row: y and z end at 65535.
#pragma once

namespace sched {

struct Tile {
    int row;     // of tiles
    int column;
    int split;   // which part of k
    int batch;
};

/// `along_m`: neighbours lie below each other in a band that is `group` tiles high; else beside each other in one
/// that is `group` tiles wide. The last band may be narrower.
__device__ __forceinline__ Tile tile_of(unsigned block, unsigned rows, unsigned columns, unsigned splits, unsigned group,
                                        bool along_m) {
    const unsigned tiles = rows * columns;
    const unsigned place = block % tiles;
    const unsigned above = block / tiles;
    const unsigned across = along_m ? rows : columns, along = along_m ? columns : rows;
    const unsigned band = place / (group * along), in_band = place % (group * along);
    const unsigned first = band * group;
    const unsigned width = across - first < group ? across - first : group;
    const unsigned x = first + in_band % width, y = in_band / width;
    Tile tile;
    tile.row = along_m ? x : y;
    tile.column = along_m ? y : x;
    tile.split = above % splits;
    tile.batch = above / splits;
    return tile;
}

/// The same along Hilbert's curve: bands of `side` (a power of two) tiles are cut into squares, and the curve runs
/// through each from one corner to the corner beside the next square. What is left at the edges is taken row by row.
__device__ __forceinline__ Tile hilbert_tile_of(unsigned block, unsigned rows, unsigned columns, unsigned splits,
                                                unsigned side) {
    const unsigned tiles = rows * columns;
    const unsigned place = block % tiles, above = block / tiles;
    const unsigned top = place / (side * columns) * side;
    const unsigned height = rows - top < side ? rows - top : side;
    const unsigned in_band = place - top * columns;
    const unsigned left = in_band / (height * side) * side;
    const unsigned width = columns - left < side ? columns - left : side;
    unsigned at = in_band - left * height;
    unsigned x = 0, y = 0;
    if (width == side && height == side) {
#pragma unroll 1
        for (unsigned half = 1; half < side; half *= 2, at /= 4) {
            // Quarter `at % 4` of the square: the first and the last are turned.
            const unsigned right = at / 2 & 1, below = (at ^ right) & 1;
            if (below == 0) {
                const unsigned turned = right ? half - 1 - x : x;
                x = right ? half - 1 - y : y;
                y = turned;
            }
            x += right * half;
            y += below * half;
        }
    } else {
        x = at % width;
        y = at / width;
    }
    Tile tile;
    tile.row = top + y;
    tile.column = left + x;
    tile.split = above % splits;
    tile.batch = above / splits;
    return tile;
}

}  // namespace sched
