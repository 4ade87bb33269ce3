(* CaM's change of the output, with the attention weights held fixed and recomputed. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm critical_kv.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* kkv-c.2: If the kept entries' values change and their keys do not, the output over the compressed cache is that with
   the weights held fixed, over Sigma, one minus the evicted mass; so if nothing moves with fixed weights, the output
   moves by the evicted mass over Sigma, times the output. *)
Theorem kkv_c_2 (R : realFieldType) (E : lmodType R) (I : finType) (exponential : I -> R) (kept : {set I})
    (v changed : I -> E) :
  let A i := exponential i / (\sum_j exponential j) in
  let output := \sum_i A i *: v i in
  let fixed := \sum_(i in kept) A i *: changed i in
  let recomputed := \sum_(i in kept) (exponential i / (\sum_(j in kept) exponential j)) *: changed i in
  let evicted := \sum_(i in ~: kept) A i in
  (forall i, 0 < exponential i) -> kept != set0 ->
  recomputed = (1 - evicted)^-1 *: fixed /\
  (fixed = output -> recomputed - output = (evicted / (1 - evicted)) *: output).
Proof.
move=> A output fixed recomputed evicted positive some.
have [mass_gt0 shares] := ckv_3_2 positive some; rewrite -/A in mass_gt0 shares.
have [i0 _] := set0Pn _ some.
have total_gt0 : 0 < \sum_j exponential j.
  by rewrite (bigD1 i0) //= ltr_spaddl //; apply: sumr_ge0 => j _; exact: ltW.
have sigma : 1 - evicted = \sum_(i in kept) A i.
  have -> : 1 = \sum_i A i by rewrite -mulr_suml divff // gt_eqF.
  by rewrite (sum_by_set kept) addrC addKr.
have by_fixed : recomputed = (1 - evicted)^-1 *: fixed.
  rewrite scaler_sumr; apply: eq_bigr => i i_kept.
  by rewrite scalerA (shares i i_kept) sigma mulrC.
split=> // same; rewrite by_fixed same -[X in _ - X]scale1r -scalerBl; congr (_ *: _).
by field; rewrite sigma gt_eqF.
Qed.
