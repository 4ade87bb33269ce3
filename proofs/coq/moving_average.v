(* KeepKV's moving average of scores (proofs/keep_kv.md), divided by the moving average of ones. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Section MovingAverage.
Variables (R : realFieldType) (a : R).
Hypothesis a_ge0 : 0 <= a.
Hypothesis a_lt1 : a < 1.

(* S of the first k scores. *)
Fixpoint average (score : nat -> R) (k : nat) : R :=
  if k is k'.+1 then a * average score k' + (1 - a) * score k' else 0.

Lemma average_of_constant (c : R) k : average (fun=> c) k = (1 - a ^+ k) * c.
Proof. by elim: k => [|k IH] /=; [rewrite expr0; ring | rewrite IH exprS; ring]. Qed.

Lemma average_monotone (s t : nat -> R) k :
  (forall i, (i < k)%N -> s i <= t i) -> average s k <= average t k.
Proof.
elim: k => [|k IH] //= le_st; apply: ler_add; apply: ler_wpmul2l => //; last 2 first.
- by rewrite subr_ge0 ltW.
- exact: le_st.
by apply: IH => i i_k; apply: le_st; exact: ltnW.
Qed.

(* kkv-8: The average of k ones is 1 - a^k, positive for k > 0. An average divided by it lies between the smallest and
   the largest of the scores, is exact if they are constant, and scales with them. The paper's, divided by 1 - a^L for
   L tokens, is (1 - a^k) / (1 - a^L) times that. *)
Theorem kkv_8 (score : nat -> R) (k : nat) :
  (0 < k)%N ->
  let ones := average (fun=> 1) k in
  [/\ ones = 1 - a ^+ k /\ 0 < ones,
      forall low high, (forall i, (i < k)%N -> low <= score i <= high) -> low <= average score k / ones <= high,
      forall c, average (fun=> c) k / ones = c,
      forall factor, average (fun i => factor * score i) k / ones = factor * (average score k / ones) &
      forall L, average score k / (1 - a ^+ L) = (1 - a ^+ k) / (1 - a ^+ L) * (average score k / ones)].
Proof.
move=> k_gt0 ones.
have power_lt1 n : (0 < n)%N -> a ^+ n < 1 by move=> n_gt0; rewrite exprn_ilt1 // -lt0n.
have ones_by : ones = 1 - a ^+ k by rewrite /ones average_of_constant mulr1.
have ones_gt0 : 0 < ones by rewrite ones_by subr_gt0 power_lt1.
have ones0 : ones != 0 by rewrite gt_eqF.
split=> [|low high within|c|factor|L]; first by [].
- have times c : average (fun=> c) k = c * ones by rewrite average_of_constant ones_by mulrC.
  rewrite ler_pdivl_mulr // ler_pdivr_mulr // -!times.
  by apply/andP; split; apply: average_monotone => i i_k; have /andP[] := within i i_k.
- by rewrite average_of_constant -ones_by mulrC mulKf.
- have -> : average (fun i => factor * score i) k = factor * average score k.
    by elim: (k) => [|n IH] /=; [rewrite mulr0 | rewrite IH; ring].
  by rewrite mulrA.
by rewrite -ones_by [RHS]mulrC mulrA divfK.
Qed.
End MovingAverage.
