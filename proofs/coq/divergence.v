(* A cluster's mean score and its divergence (proofs/keep_kv.md), over any real field with an exponential and its
   logarithm. A cluster is a list of entries. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import exponential hoeffding.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

Lemma sum_gt0 (R : realFieldType) (I : eqType) (s : seq I) (f : I -> R) :
  s != [::] -> (forall i, i \in s -> 0 < f i) -> 0 < \sum_(i <- s) f i.
Proof.
case: s => [//|i s] _ f_gt0; rewrite big_cons ltr_spaddl ?f_gt0 ?mem_head // big_seq.
by apply: sumr_ge0 => j j_s; rewrite ltW // f_gt0 // in_cons j_s orbT.
Qed.

Section Cluster.
Variables (R : realFieldType) (e : exponential R) (ln : logarithm e).
Variables (I : eqType) (s : seq I) (votes log_score : I -> R).
Hypothesis some : s != [::].
Hypothesis votes_gt0 : forall i, i \in s -> 0 < votes i.

Definition scored i := votes i * e (log_score i).
Definition total_score := \sum_(i <- s) scored i.
Definition total_votes := \sum_(i <- s) votes i.
Definition share i := scored i / total_score.
Definition mean (E : lmodType R) (f : I -> E) := \sum_(i <- s) share i *: f i.
Definition mean_log_score := \sum_(i <- s) share i * log_score i.
Definition log_mean_score := ln (total_score / total_votes).
Definition divergence := \sum_(i <- s) share i * ln (share i / (votes i / total_votes)).

Lemma scored_gt0 i : i \in s -> 0 < scored i.
Proof. by move=> i_s; rewrite mulr_gt0 ?votes_gt0 ?exp_gt0. Qed.

Lemma total_score_gt0 : 0 < total_score.
Proof. exact: sum_gt0 some scored_gt0. Qed.

Lemma total_votes_gt0 : 0 < total_votes.
Proof. exact: sum_gt0 some votes_gt0. Qed.

Lemma share_gt0 i : i \in s -> 0 < share i.
Proof. by move=> i_s; rewrite divr_gt0 ?total_score_gt0 ?scored_gt0. Qed.

Lemma sum_share : \sum_(i <- s) share i = 1.
Proof. by rewrite -mulr_suml mulfV // gt_eqF // total_score_gt0. Qed.

Lemma divergence_by : divergence = mean_log_score - log_mean_score.
Proof.
rewrite -[log_mean_score]mul1r -sum_share mulr_suml -sumrB; apply: eq_big_seq => i i_s; rewrite -mulrBr.
congr (_ * _); have [p_gt0 W_gt0 P_gt0] := And3 (votes_gt0 i_s) total_score_gt0 total_votes_gt0.
rewrite -[X in X - _](ln_exp ln) -ln_div ?exp_gt0 ?divr_gt0 //; congr (ln _); rewrite /share /scored; field.
by rewrite !gt_eqF.
Qed.

Lemma exp_divergence : e divergence = \sum_(i <- s) share i * e (mean_log_score - log_score i).
Proof.
have [W_gt0 P_gt0] := (total_score_gt0, total_votes_gt0).
rewrite divergence_by exp_sub exp_ln ?divr_gt0 // invf_div mulrCA mulr_suml; apply: eq_bigr => i _.
by rewrite exp_sub /share /scored; field; rewrite exp_neq0 gt_eqF.
Qed.

Let excess i := e (mean_log_score - log_score i) - (1 + (mean_log_score - log_score i)).

Let exp_divergence_by : e divergence = 1 + \sum_(i <- s) share i * excess i.
Proof.
rewrite (eq_bigr (fun i => share i * e (mean_log_score - log_score i) -
    (share i + (share i * mean_log_score - share i * log_score i)))); last by move=> i _; rewrite /excess; ring.
by rewrite sumrB -exp_divergence big_split sumrB /= sum_share -mulr_suml sum_share mul1r subrr addr0 addrC subrK.
Qed.

Let excess_ge0 i : 0 <= excess i.
Proof. by rewrite subr_ge0 exp_ge. Qed.

Lemma divergence_ge0 : 0 <= divergence.
Proof.
rewrite -(exp_le e) exp_zero exp_divergence_by ler_addl big_seq; apply: sumr_ge0 => i i_s.
by rewrite mulr_ge0 // ltW // share_gt0.
Qed.

Lemma divergence_eq0 : divergence = 0 <-> {in s &, forall i j, log_score i = log_score j}.
Proof.
split=> [zero | same].
  suff at_mean i : i \in s -> log_score i = mean_log_score by move=> i j /at_mean -> /at_mean.
  move=> i_s; apply/esym/eqP; rewrite -subr_eq0; apply/eqP; apply: contra_eq (exp_divergence_by) => apart.
  rewrite zero exp_zero -[X in X != _]addr0 (inj_eq (addrI _)) eq_sym gt_eqF //.
  have term_ge0 j : j \in s -> 0 <= share j * excess j by move=> j_s; rewrite mulr_ge0 // ltW // share_gt0.
  rewrite big_seq (perm_big _ (perm_to_rem i_s)) big_cons i_s; apply: ltr_spaddl.
    by rewrite mulr_gt0 ?share_gt0 // subr_gt0 exp_gt.
  by apply: sumr_ge0 => j /term_ge0.
apply: (@exp_inj _ e); rewrite exp_zero exp_divergence -sum_share; apply: eq_big_seq => i i_s.
have -> : mean_log_score = log_score i; last by rewrite subrr exp_zero mulr1.
rewrite -[RHS]mul1r -sum_share mulr_suml; apply: eq_big_seq => j j_s.
by rewrite (same j i).
Qed.

Lemma divergence_le_votes least :
  0 < least -> (forall i, i \in s -> least <= votes i) -> divergence <= ln (total_votes / least).
Proof.
move=> least_gt0 at_least; rewrite -[X in _ <= X]mul1r -sum_share mulr_suml /divergence big_seq [X in _ <= X]big_seq.
apply: ler_sum => i i_s; have [p_gt0 P_gt0 w_gt0] := And3 (votes_gt0 i_s) total_votes_gt0 (share_gt0 i_s).
apply: ler_wpmul2l; first exact: ltW.
have part_gt0 : 0 < votes i / total_votes by rewrite divr_gt0.
rewrite ln_le; [rewrite invf_div mulrCA | exact: divr_gt0 | exact: divr_gt0].
have share_le1 : share i <= 1.
  rewrite -sum_share (perm_big _ (perm_to_rem i_s)) big_cons ler_addl big_seq.
  by apply: sumr_ge0 => j /mem_rem j_s; rewrite ltW // share_gt0.
apply: ler_wpmul2l; first exact: ltW.
rewrite ler_pdivr_mulr // mulrC ler_pdivl_mulr //; apply: le_trans (at_least i i_s).
by rewrite ler_pimull // ltW.
Qed.
End Cluster.

(* kkv-kl: The mean logarithm of a cluster's scores, by the shares w/W, is larger than the logarithm of their mean W/P
   by the divergence KL, which is not negative, and 0 exactly if all scores are equal. It is at most ln(P / min p) and
   at most an eighth of the squared range of the logarithms. *)
Theorem kkv_kl (R : archiFieldType) (e : exponential R) (ln : logarithm e) (I : eqType) (s : seq I)
    (votes log_score : I -> R) :
  s != [::] -> (forall i, i \in s -> 0 < votes i) ->
  let KL := divergence ln s votes log_score in
  [/\ mean_log_score e s votes log_score - log_mean_score ln s votes log_score = KL,
      0 <= KL /\ (KL = 0 <-> {in s &, forall i j, log_score i = log_score j}),
      forall least, 0 < least -> (forall i, i \in s -> least <= votes i) ->
        KL <= ln (total_votes s votes / least) &
      forall low high, (forall i, i \in s -> low <= log_score i <= high) -> KL <= (high - low) ^+ 2 / 8%:R].
Proof.
move=> some votes_gt0 KL; split=> [|||low high within].
- by rewrite -divergence_by.
- by split; [exact: divergence_ge0 | exact: divergence_eq0].
- by move=> least; exact: divergence_le_votes.
rewrite -(exp_le e) exp_divergence //; set m := mean_log_score _ _ _ _.
rewrite (_ : high - low = (m - low) - (m - high)); last by ring.
apply: hoeffding => [i i_s|||i /within/andP[low_le le_high]].
- by rewrite ltW // share_gt0.
- exact: sum_share.
- rewrite (eq_bigr (fun i => share e s votes log_score i * m - share e s votes log_score i * log_score i)).
    by rewrite sumrB -mulr_suml sum_share // mul1r subrr.
  by move=> i _; rewrite mulrBr.
by rewrite !ler_add2l !ler_opp2 low_le le_high.
Qed.
