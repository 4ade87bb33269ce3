// Matrices of 16-bit numbers in shared memory, as wgmma's 64-bit descriptors name them.
//
//     bits  0-13   address / 16
//     bits 16-29   leading dimension's byte offset / 16, of an N-major matrix
//     bits 32-45   stride dimension's byte offset / 16: between groups of eight rows
//     bits 49-51   offset of the swizzle's period
//     bits 62-63   1: a swizzle of 128 bytes
//
// A K-major matrix has a row's 16 numbers along k adjacent. Within a group of eight, rows follow each other
// after 128 bytes, the swizzle's span. The swizzle applies to addresses, so that a descriptor may begin
// anywhere in the period's first row of units.
//
// An N-major one has the numbers of one k adjacent, 64 in a span; the next ones lie the leading
// dimension's offset further on. Eight k follow each other after a span, then the next eight after the
// stride dimension's offset.
//
// source  PTX ISA, 9.7.15.5.1 (shared-memory layouts and matrix descriptors)
#pragma once

#include <cstdint>

#include "block.hpp"

namespace kvbound::cuda::emulation {

/// Rows first..first + count - 1 of the matrix, 16 numbers each. Fails if a bit is set that has no
/// meaning, or a number lies in no array of shared memory; with `check`, also if a number was written
/// with no fence behind that.
void read_rows(uint64_t descriptor, int first, int count, bool check, uint16_t (*rows)[16], CallSite where);

/// The same of an N-major matrix: rows[n] are the 16 numbers of column n < count, a multiple of 8.
void read_columns(uint64_t descriptor, int count, bool check, uint16_t (*rows)[16], CallSite where);

}  // namespace kvbound::cuda::emulation
