#include <gtest/gtest.h>

#include <kvbound/sim/figures/chosen_columns.hpp>

#include "support/message_of.hpp"
#include "support/small_cube.hpp"

namespace kvbound::sim::chosen_columns_test {
namespace {

const std::vector<Figure> kKnown{{.name = "perturbation", .heading = "L", .meaning = ""},
                                 {.name = "kept_mass", .heading = "kept mass", .meaning = ""}};

using Names = std::vector<std::string>;

Names chosen(const Arguments& arguments) {
  CommandLine line("test", "");
  add_columns_option(line, kKnown);
  EXPECT_TRUE(line.parse(arguments));
  return chosen_columns(line, kKnown);
}

TEST(ChosenColumns, AreNamesWhateverTheyWereCalled) {
  EXPECT_EQ(chosen({}), Names());
  EXPECT_EQ(chosen({"--columns", "kept mass,l"}), (Names{"kept_mass", "perturbation"}));
  EXPECT_EQ(chosen({"--columns", "all"}), (Names{"perturbation", "kept_mass"}));
}

TEST(ChosenColumns, AreRefusedIfThereIsNoneOfThatNameOrItIsGivenTwice) {
  EXPECT_EQ(test::message_of<UsageError>([] {
              chosen({"--columns", "L,mass"});
            }),
            "--columns: no column 'mass'; known columns: perturbation, kept_mass");
  EXPECT_EQ(test::message_of<UsageError>([] {
              chosen({"--columns", "L,perturbation"});
            }),
            "--columns: 'perturbation' is given twice");
}

}  // namespace
}  // namespace kvbound::sim::chosen_columns_test
