(* How far reweighting moves a mean: the total variation between the weights times the distance of values, and the
   largest total variation that factors within an interval can cause. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination critical_kv.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section TotalVariation.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).
Variables (I : finType) (before after : I -> R) (v : I -> E).
Hypothesis before_gt0 : forall i, 0 < before i.
Hypothesis after_gt0 : forall i, 0 < after i.
Hypothesis some : exists i : I, true.

Let sum_gt0 (f : I -> R) : (forall i, 0 < f i) -> 0 < \sum_i f i.
Proof.
by move=> f_gt0; have [i0 _] := some; rewrite (bigD1 i0) //= ltr_spaddl //; apply: sumr_ge0 => i _; exact: ltW.
Qed.

(* By how much an entry's share grows, and which entries' shares do. *)
Definition growth i := after i / (\sum_j after j) - before i / (\sum_j before j).
Definition grows := [set i | 0 < growth i].
Definition total_variation := \sum_(i in grows) growth i.

Let sum_growth : \sum_i growth i = 0.
Proof. by rewrite sumrB -!mulr_suml !mulfV ?subrr // gt_eqF // sum_gt0. Qed.

Let by_grows (M : zmodType) (f : I -> M) : \sum_i f i = \sum_(i in grows) f i + \sum_(i in ~: grows) f i.
Proof. by rewrite (sum_by_set grows) addrC. Qed.

Let sum_shrinks : \sum_(i in ~: grows) - growth i = total_variation.
Proof. by rewrite sumrN; apply/eqP; rewrite eq_sym -addr_eq0 /total_variation -by_grows sum_growth. Qed.

Lemma total_variation_ge0 : 0 <= total_variation.
Proof. by apply: sumr_ge0 => i; rewrite inE => /ltW. Qed.

Lemma total_variation_half : total_variation = (\sum_i `|growth i|) / 2%:R.
Proof.
rewrite by_grows (eq_bigr growth) => [|i]; last by rewrite inE => /ltW/ger0_norm.
rewrite [X in _ + X](eq_bigr (fun i => - growth i)) => [|i].
  by rewrite sum_shrinks -/total_variation -mulr2n -[X in X / _]mulr_natr mulfK // pnatr_eq0.
by rewrite !inE -leNgt => /ler0_norm.
Qed.

Lemma mean_change (gamma : R) :
  (forall i j, 0 < growth i -> growth j < 0 -> N (v i - v j) <= gamma) ->
  N ((\sum_i after i)^-1 *: (\sum_i after i *: v i) - (\sum_i before i)^-1 *: (\sum_i before i *: v i)) <=
    total_variation * gamma.
Proof.
move=> near; have -> : (\sum_i after i)^-1 *: (\sum_i after i *: v i) -
    (\sum_i before i)^-1 *: (\sum_i before i *: v i) = \sum_i growth i *: v i.
  rewrite !scaler_sumr -sumrB; apply: eq_bigr => i _.
  by rewrite !scalerA -scalerBl /growth [_^-1 * after i]mulrC [_^-1 * before i]mulrC.
set change := \sum_i _; have T_ge0 := total_variation_ge0.
have pairs : total_variation *: change =
    \sum_(i in grows) \sum_(j in ~: grows) (growth i * - growth j) *: (v i - v j).
  pose shrinking := \sum_(j in ~: grows) growth j *: v j.
  have one i : \sum_(j in ~: grows) (growth i * - growth j) *: (v i - v j) =
      total_variation *: (growth i *: v i) + growth i *: shrinking.
    rewrite -sum_shrinks scaler_suml scaler_sumr -big_split; apply: eq_bigr => j _ /=.
    by linear; ring.
  by rewrite (eq_bigr _ (fun i _ => one i)) big_split /= -scaler_sumr -scaler_suml -scalerDr -by_grows.
have [T0 | T_neq0] := eqVneq total_variation 0; last first.
  have T_gt0 : 0 < total_variation by rewrite lt0r T_neq0.
  rewrite -(ler_pmul2l T_gt0) -{1}(ger0_norm T_ge0) -norm_scale pairs; apply: le_trans (norm_sum _ _ _) _.
  rewrite mulrA -{1}sum_shrinks mulrAC {1}/total_variation mulr_sumr; apply: ler_sum => i i_grows.
  apply: le_trans (norm_combination _ _ _ _) _; rewrite -mulrA mulr_suml; apply: ler_sum => j.
  rewrite !inE in i_grows *; rewrite -leNgt => j_shrinks.
  have [-> | j0] := eqVneq (growth j) 0; first by rewrite oppr0 mulr0 normr0 !mul0r.
  rewrite ger0_norm ?mulr_ge0 ?oppr_ge0 ?(ltW i_grows) // [growth i * _]mulrC -mulrA.
  rewrite ler_wpmul2l ?oppr_ge0 // [gamma * _]mulrC ler_wpmul2l ?(ltW i_grows) // near // lt_neqAle j0.
  exact: j_shrinks.
have grows0 i : i \in grows -> growth i = 0.
  move=> i_in; apply/eqP; move/eqP: T0; rewrite psumr_eq0 => [/allP/(_ i)|j]; last by rewrite inE => /ltW.
  by rewrite mem_index_enum i_in => /(_ isT).
have shrinks0 i : i \in ~: grows -> growth i = 0.
  move=> i_in; apply/eqP; rewrite -oppr_eq0; have /eqP := sum_shrinks; rewrite T0 psumr_eq0 => [/allP/(_ i)|j].
    by rewrite mem_index_enum i_in => /(_ isT).
  by rewrite !inE -leNgt oppr_ge0.
have -> : change = 0.
  rewrite /change; apply: big1 => i _; suff -> : growth i = 0 by exact: scale0r.
  by have [/grows0 | i_not] := boolP (i \in grows); last by apply: shrinks0; rewrite inE.
by rewrite norm_zero T0 mul0r.
Qed.

(* If the factors are between low and root^2 low, the total variation is at most (root - 1) / (root + 1). *)
Lemma total_variation_le (low root : R) :
  0 < low -> 1 <= root -> (forall i, low * before i <= after i <= root ^+ 2 * low * before i) ->
  total_variation <= (root - 1) / (root + 1).
Proof.
move=> low_gt0 root_ge1 within; have root_ge0 : 0 <= root := le_trans ler01 root_ge1.
have more_gt0 : 0 < root + 1 by rewrite ltr_paddl ?ltr01.
pose x := \sum_(i in grows) before i; pose x' := \sum_(i in grows) after i.
pose y := \sum_(i in ~: grows) before i; pose y' := \sum_(i in ~: grows) after i.
have sum_ge0 (f : I -> R) (P : pred I) : (forall i, 0 < f i) -> 0 <= \sum_(i | P i) f i.
  by move=> f_gt0; apply: sumr_ge0 => i _; exact: ltW.
have [x_ge0 x'_ge0 y_ge0 y'_ge0] : [/\ 0 <= x, 0 <= x', 0 <= y & 0 <= y'] by split; exact: sum_ge0.
have x'_le : x' <= root ^+ 2 * low * x by rewrite mulr_sumr; apply: ler_sum => i _; have /andP[] := within i.
have y'_ge : low * y <= y' by rewrite mulr_sumr; apply: ler_sum => i _; have /andP[] := within i.
have total_gt0 : 0 < x + y by rewrite -by_grows; exact: sum_gt0.
have total'_gt0 : 0 < x' + y' by rewrite -by_grows; exact: sum_gt0.
have -> : total_variation = x' / (x' + y') - x / (x + y).
  by rewrite /total_variation sumrB -!mulr_suml (@by_grows _ before) (@by_grows _ after).
rewrite (_ : _ - _ = (x' * y - x * y') / ((x' + y') * (x + y))); last by field; rewrite !gt_eqF.
rewrite ler_pdivr_mulr ?mulr_gt0 // mulrAC ler_pdivl_mulr // -subr_ge0.
rewrite [X in _ <= X](_ : _ = (root - 1) * (x * x') + (root - 1) * (y * y') - 2%:R * (x' * y) +
  2%:R * root * (x * y')); last by ring.
have less_ge0 : 0 <= root - 1 by rewrite subr_ge0.
have cross : 0 <= root ^+ 2 * (x * y') - x' * y.
  rewrite subr_ge0 -(ler_pmul2l low_gt0) (_ : low * (x' * y) = x' * (low * y)); last by ring.
  apply: (le_trans (ler_wpmul2l x'_ge0 y'_ge)); rewrite (_ : low * _ = root ^+ 2 * low * x * y'); last by ring.
  exact: ler_wpmul2r.
have [x0 | x_neq0] := eqVneq x 0.
  have x'0 : x' = 0 by apply: le_anti; rewrite x'_ge0 (le_trans x'_le) // x0 mulr0.
  by rewrite x0 x'0 !(mul0r, mulr0, subr0, addr0, add0r) !mulr_ge0.
have [y0 | y_neq0] := eqVneq y 0.
  by rewrite y0 !(mul0r, mulr0, subr0, addr0, add0r) addr_ge0 // !mulr_ge0 ?ler0n.
have [x_gt0 y_gt0] : 0 < x /\ 0 < y by rewrite !lt0r x_neq0 y_neq0.
have root_gt0 : 0 < root := lt_le_trans ltr01 root_ge1.
rewrite -(pmulr_rge0 _ (mulr_gt0 (mulr_gt0 (exprn_gt0 2 root_gt0) x_gt0) y_gt0)).
rewrite [X in _ <= X](_ : _ = x' * y * (root - 1) * (root * x - y) ^+ 2 +
  (root ^+ 2 * (x * y') - x' * y) * y * ((root - 1) * y + 2%:R * root * x)); last by ring.
by nonnegative.
Qed.
End TotalVariation.
