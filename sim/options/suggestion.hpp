// What to say of a name that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvbound::sim {

using Names = std::vector<std::string>;

/// The known name that was probably meant: the one that the fewest insertions, deletions, replacements and
/// exchanges of neighbours lead to, in capitals or not, if these are at most one for every three letters; or
/// the only one that begins so. Empty if there is none; of equally near ones the first.
std::string nearest(std::string_view word, const Names& known);

/// "did you mean snapkv? known hosts: snapkv, h2o", or without the question.
///
/// before  what stands before the list: "known hosts: "
std::string suggestion(std::string_view word, std::string_view before, const Names& known);

}  // namespace kvbound::sim
