(* One bound for every method whose output is a combination of the original entries' contributions: eviction, and
   merging by whatever weights. *)
From mathcomp Require Import all_ssreflect all_algebra.
From kvbound Require Import seminorm.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* theta-all: Two combinations of equal total differ by at most the sum of their weights' differences, each times the
   distance of its contribution from any one centre. *)
Theorem theta_all (R : realFieldType) (E : lmodType R) (N : seminorm E) (I : finType) (A b : I -> R)
    (V : I -> E) (centre : E) :
  \sum_i A i = \sum_i b i ->
  N (\sum_i A i *: V i - \sum_i b i *: V i) <= \sum_i `|A i - b i| * N (V i - centre).
Proof.
move=> same; have -> : \sum_i A i *: V i - \sum_i b i *: V i = \sum_i (A i - b i) *: (V i - centre).
  rewrite -sumrB; transitivity (\sum_i (A i - b i) *: V i - (\sum_i (A i - b i)) *: centre).
    have -> : \sum_i (A i - b i) = 0 by rewrite sumrB same subrr.
    by rewrite scale0r subr0; apply: eq_bigr => i _; rewrite scalerBl.
  by rewrite scaler_suml -sumrB; apply: eq_bigr => i _; rewrite scalerBr.
exact: norm_combination.
Qed.
