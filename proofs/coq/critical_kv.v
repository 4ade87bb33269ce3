(* CriticalKV's statements (proofs/critical_kv.md), over any real field and in any seminorm. A family of weights A and
   one of contributions V over a finite set of entries; kept sets, stage one and stage two are sets of entries. The
   exponentials of logits enter as any positive numbers, of which nothing else is used. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm exchange.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* ckv-3.2: If an entry is kept, the kept mass is positive, and the softmax over the kept logits is the attention
   weight divided by the kept mass. *)
Theorem ckv_3_2 (R : realFieldType) (I : finType) (exponential : I -> R) (kept : {set I}) :
  let A i := exponential i / (\sum_j exponential j) in
  (forall i, 0 < exponential i) -> kept != set0 ->
  0 < \sum_(i in kept) A i /\
  forall i, i \in kept -> exponential i / (\sum_(j in kept) exponential j) = A i / (\sum_(j in kept) A j).
Proof.
move=> A positive /set0Pn[i0 i0_kept].
have sum_gt0 (P : pred I) : P i0 -> 0 < \sum_(j | P j) exponential j.
  move=> P_i0; rewrite (bigD1 i0) //= ltr_spaddl //.
  by apply: sumr_ge0 => j _; exact: ltW.
have all_gt0 := sum_gt0 predT isT; have kept_gt0 := sum_gt0 (mem kept) i0_kept.
have mass : \sum_(i in kept) A i = (\sum_(j in kept) exponential j) / \sum_j exponential j.
  by rewrite mulr_suml.
split=> [|i _]; first by rewrite mass divr_gt0.
by rewrite mass /A invf_div mulrA divfK // gt_eqF.
Qed.

Section CriticalKV.
Variables (R : realFieldType) (E : lmodType R) (N : seminorm E).
Variables (I : finType) (A : I -> R) (V : I -> E).
Hypothesis A_ge0 : forall i, 0 <= A i.
Hypothesis A_total : \sum_i A i = 1.

Notation n i := (N (V i)).

(* Sums over a set of entries, and over all of them. *)
Definition mass (K : {set I}) := \sum_(i in K) A i.
Definition norm_mass (K : {set I}) := \sum_(i in K) A i * n i.
Definition total_norm_mass := \sum_i A i * n i.

Definition output := \sum_i A i *: V i.
Definition compressed (K : {set I}) := \sum_(i in K) (A i / mass K) *: V i.
Definition perturbation (K : {set I}) := N (output - compressed K).

(* The coefficient 2 - 1/x, and the bounds with it. *)
Definition coefficient (x : R) := 2%:R - x^-1.
Definition theta (K : {set I}) := total_norm_mass - coefficient (mass K) * norm_mass K.
Definition theta_hat (F K : {set I}) := total_norm_mass - coefficient (mass F) * norm_mass K.
Definition theta_hat_relax (M : R) (F T : {set I}) :=
  (total_norm_mass - coefficient (mass F) * norm_mass F) - M * coefficient (mass F) * mass T.

Lemma contribution_ge0 i : 0 <= A i * n i.
Proof. by rewrite mulr_ge0 ?norm_ge0. Qed.

Lemma mass_ge0 K : 0 <= mass K.
Proof. by apply: sumr_ge0. Qed.

Lemma norm_mass_ge0 K : 0 <= norm_mass K.
Proof. by apply: sumr_ge0 => i _; exact: contribution_ge0. Qed.

Lemma sum_by_set (M : zmodType) (K : {set I}) (f : I -> M) :
  \sum_i f i = \sum_(i in ~: K) f i + \sum_(i in K) f i.
Proof. by rewrite (bigID (mem K)) /= addrC; congr (_ + _); apply: eq_bigl => i; rewrite inE. Qed.

Lemma sum_disjoint (M : zmodType) (F T : {set I}) (f : I -> M) :
  [disjoint F & T] -> \sum_(i in F :|: T) f i = \sum_(i in F) f i + \sum_(i in T) f i.
Proof. by move=> apart; rewrite -bigU //=; apply: eq_bigl => i; rewrite !inE. Qed.

Lemma mass_evicted K : mass (~: K) = 1 - mass K.
Proof. by rewrite -A_total (sum_by_set K) addrK. Qed.

Lemma mass_le1 K : mass K <= 1.
Proof. by rewrite -subr_ge0 -mass_evicted mass_ge0. Qed.

Lemma mass_subset (F K : {set I}) : F \subset K -> mass F <= mass K.
Proof.
move=> F_K; rewrite /mass [X in _ <= X](big_setID F) /= (setIidPr F_K) ler_addl.
exact: sumr_ge0.
Qed.

Lemma total_norm_mass_by K : total_norm_mass = \sum_(i in ~: K) A i * n i + norm_mass K.
Proof. exact: sum_by_set. Qed.

(* (1 - x) / x = 1 / x - 1 = 1 - coefficient x *)
Lemma one_less_coefficient x : x != 0 -> (1 - x) / x = 1 - coefficient x.
Proof. by move=> x0; rewrite /coefficient mulrBl mul1r divff //; ring. Qed.

Lemma coefficient_ge0 x : 2%:R^-1 <= x -> 0 <= coefficient x.
Proof.
move=> half; have x_gt0 : 0 < x by apply: lt_le_trans half; rewrite invr_gt0 ltr0n.
by rewrite subr_ge0 -[2%:R]invrK lef_pinv ?posrE ?invr_gt0 ?ltr0n.
Qed.

Lemma coefficient_le0 x : 0 < x -> x <= 2%:R^-1 -> coefficient x <= 0.
Proof. by move=> x_gt0 half; rewrite subr_le0 -[2%:R]invrK lef_pinv ?posrE ?invr_gt0 ?ltr0n. Qed.

Lemma coefficient_monotone x y : 0 < x -> x <= y -> coefficient x <= coefficient y.
Proof.
move=> x_gt0 x_y; rewrite ler_add2l ler_opp2 lef_pinv ?posrE //.
exact: lt_le_trans x_gt0 x_y.
Qed.

Lemma change_of_output K : 0 < mass K ->
  output - compressed K =
  \sum_(i in ~: K) A i *: V i - (mass (~: K) / mass K) *: \sum_(i in K) A i *: V i.
Proof.
move=> m_gt0; rewrite /output /compressed (sum_by_set K) -addrA; congr (_ + _).
rewrite -sumrB scaler_sumr -sumrN; apply: eq_bigr => i _.
rewrite scalerA -scalerBl -scaleNr; congr (_ *: _).
rewrite mass_evicted one_less_coefficient ?gt_eqF // /coefficient; ring.
Qed.

(* ckv-stable: With weights of total 1, a stage one F of positive mass and a stage two T outside it, whose union is
   kept, the change of the output and the three bounds equal forms in which nothing cancels. *)
Theorem ckv_stable (F T : {set I}) (M : R) :
  [disjoint F & T] -> 0 < mass F ->
  let K := F :|: T in
  let evicted := \sum_(i in ~: K) A i * n i in
  [/\ output - compressed K =
        \sum_(i in ~: K) A i *: V i - (mass (~: K) / mass K) *: \sum_(i in K) A i *: V i,
      theta K = evicted + mass (~: K) / mass K * norm_mass K,
      theta_hat F K = evicted + (1 - mass F) / mass F * norm_mass K &
      theta_hat_relax M F T =
        evicted + \sum_(i in T) A i * (n i - M) + (1 - mass F) / mass F * (norm_mass F + M * mass T)].
Proof.
move=> apart F_gt0 K evicted.
have K_gt0 : 0 < mass K by apply: lt_le_trans F_gt0 (mass_subset (subsetUl _ _)).
have in_T : \sum_(i in T) A i * (n i - M) = norm_mass T - M * mass T.
  rewrite /norm_mass /mass mulr_sumr -sumrB; apply: eq_bigr => i _; ring.
have K_by : norm_mass K = norm_mass F + norm_mass T by exact: sum_disjoint.
split; first exact: change_of_output.
- rewrite /theta (total_norm_mass_by K) mass_evicted one_less_coefficient ?gt_eqF // /evicted; ring.
- rewrite /theta_hat (total_norm_mass_by K) one_less_coefficient ?gt_eqF // /evicted; ring.
rewrite /theta_hat_relax (total_norm_mass_by K) one_less_coefficient ?gt_eqF // in_T K_by /evicted; ring.
Qed.

(* ckv-3.3: For every kept set of positive mass the output's perturbation is at most theta, in any one seminorm. *)
Theorem ckv_3_3 (K : {set I}) : 0 < mass K -> perturbation K <= theta K.
Proof.
move=> m_gt0; rewrite /perturbation change_of_output // /theta (total_norm_mass_by K).
apply: le_trans (norm_add _ _ _) _; rewrite norm_opp norm_scale.
have ratio_ge0 : 0 <= mass (~: K) / mass K by rewrite divr_ge0 ?mass_ge0.
have sum_le (P : {set I}) : N (\sum_(i in P) A i *: V i) <= norm_mass P.
  by apply: le_trans (norm_combination _ _ _ _) _; apply: ler_sum => i _; rewrite ger0_norm.
apply: le_trans (ler_add (sum_le _) (ler_wpmul2l _ (sum_le K))) _; first by rewrite normr_ge0.
rewrite ger0_norm // mass_evicted one_less_coefficient ?gt_eqF // /norm_mass -/(norm_mass K).
by rewrite le_eqVlt; apply/orP; left; apply/eqP; ring.
Qed.

(* The sum that theta_hat depends on: S'' of stage two. *)
Lemma theta_hat_of_union (F T : {set I}) : [disjoint F & T] ->
  theta_hat F (F :|: T) =
  (total_norm_mass - coefficient (mass F) * norm_mass F) - coefficient (mass F) * norm_mass T.
Proof. by move=> apart; rewrite /theta_hat /norm_mass sum_disjoint //; ring. Qed.

(* ckv-3.5: With stage one F of positive mass inside the kept set, theta is at most theta_hat, with equality exactly
   if the masses are equal or nothing kept contributes. Of stage twos of one size outside F, the one of largest A n
   has the smallest theta_hat if F has at least half of the mass, and the largest if it has at most half. *)
Theorem ckv_3_5 (F : {set I}) : 0 < mass F ->
  [/\ forall K : {set I}, F \subset K ->
        theta K <= theta_hat F K /\
        (theta K = theta_hat F K <-> mass K = mass F \/ norm_mass K = 0),
      forall T T' : {set I}, is_top (fun i => A i * n i) (~: F) T -> T' \subset ~: F -> #|T'| = #|T| ->
        2%:R^-1 <= mass F -> theta_hat F (F :|: T) <= theta_hat F (F :|: T') &
      forall T T' : {set I}, is_top (fun i => A i * n i) (~: F) T -> T' \subset ~: F -> #|T'| = #|T| ->
        mass F <= 2%:R^-1 -> theta_hat F (F :|: T') <= theta_hat F (F :|: T)].
Proof.
move=> F_gt0; split=> [K F_K|T T' top T'_out same half|T T' top T'_out same half].
- have F_le_K := mass_subset F_K; have K_gt0 : 0 < mass K := lt_le_trans F_gt0 F_le_K.
  have difference : theta_hat F K - theta K = ((mass F)^-1 - (mass K)^-1) * norm_mass K.
    by rewrite /theta_hat /theta /coefficient; ring.
  split.
    rewrite -subr_ge0 difference mulr_ge0 ?norm_mass_ge0 // subr_ge0.
    by rewrite lef_pinv ?posrE.
  split=> [same|[same|none]].
  + have /eqP : ((mass F)^-1 - (mass K)^-1) * norm_mass K = 0 by rewrite -difference same subrr.
    rewrite mulf_eq0 subr_eq0 => /orP[/eqP/invr_inj ->|/eqP ->]; by [left | right].
  + by apply/eqP; rewrite eq_sym -subr_eq0 difference same subrr mul0r.
  by apply/eqP; rewrite eq_sym -subr_eq0 difference none mulr0.
- rewrite !theta_hat_of_union ?disjoint_outside ?(proj1 top) // ler_add2l ler_opp2.
  by apply: ler_wpmul2l; [exact: coefficient_ge0 | exact: exchange top _ _].
rewrite !theta_hat_of_union ?disjoint_outside ?(proj1 top) // ler_add2l ler_opp2.
by apply: ler_wnmul2l; [exact: coefficient_le0 | exact: exchange top _ _].
Qed.

(* ckv-e.1: If F has positive mass and no norm is below M, theta_hat is at most theta_hat_relax where F has at least
   half of the mass, and at least that where it has at most half; of stage twos of one size the one of largest
   attention has the smallest, or the largest, theta_hat_relax, if M is not negative. *)
Theorem ckv_e_1 (F : {set I}) (M : R) : 0 < mass F -> (forall i, M <= n i) ->
  [/\ forall T : {set I}, T \subset ~: F -> 2%:R^-1 <= mass F -> theta_hat F (F :|: T) <= theta_hat_relax M F T,
      forall T : {set I}, T \subset ~: F -> mass F <= 2%:R^-1 -> theta_hat_relax M F T <= theta_hat F (F :|: T),
      forall T T' : {set I}, is_top A (~: F) T -> T' \subset ~: F -> #|T'| = #|T| -> 0 <= M ->
        2%:R^-1 <= mass F -> theta_hat_relax M F T <= theta_hat_relax M F T' &
      forall T T' : {set I}, is_top A (~: F) T -> T' \subset ~: F -> #|T'| = #|T| -> 0 <= M ->
        mass F <= 2%:R^-1 -> theta_hat_relax M F T' <= theta_hat_relax M F T].
Proof.
move=> F_gt0 least.
have rest_ge0 T : 0 <= norm_mass T - M * mass T.
  rewrite subr_ge0 /norm_mass /mass mulr_sumr; apply: ler_sum => i _.
  by rewrite mulrC ler_wpmul2l.
have difference (T : {set I}) : T \subset ~: F ->
    theta_hat_relax M F T - theta_hat F (F :|: T) = coefficient (mass F) * (norm_mass T - M * mass T).
  by move=> T_out; rewrite theta_hat_of_union ?disjoint_outside // /theta_hat_relax; ring.
split=> [T T_out half|T T_out half|T T' top T'_out same M_ge0 half|T T' top T'_out same M_ge0 half].
- by rewrite -subr_ge0 difference // mulr_ge0 ?coefficient_ge0.
- by rewrite -subr_le0 difference // mulr_le0_ge0 ?coefficient_le0.
- rewrite ler_add2l ler_opp2; apply: ler_wpmul2l; first by rewrite mulr_ge0 ?coefficient_ge0.
  exact: exchange top _ _.
rewrite ler_add2l ler_opp2; apply: ler_wnmul2l; first by rewrite mulr_ge0_le0 ?coefficient_le0.
exact: exchange top _ _.
Qed.

(* ckv-epsilon: With at least half of the mass in stage one, a stage two of largest (A + eps) n costs at most what the
   norms of its own entries exceed those of the best one's by, times the coefficient and eps. *)
Theorem ckv_epsilon (F T best : {set I}) (eps : R) :
  2%:R^-1 <= mass F -> 0 <= eps ->
  is_top (fun i => (A i + eps) * n i) (~: F) T -> is_top (fun i => A i * n i) (~: F) best -> #|T| = #|best| ->
  let c := coefficient (mass F) in
  let loss := theta_hat F (F :|: T) - theta_hat F (F :|: best) in
  let gap := \sum_(i in T :\: best) n i - \sum_(i in best :\: T) n i in
  [/\ 0 <= loss, loss <= c * eps * gap & c * eps * gap <= c * eps * \sum_(i in T) n i].
Proof.
move=> half eps_ge0 top best_top same c loss gap.
have c_ge0 : 0 <= c := coefficient_ge0 half.
have F_gt0 : 0 < mass F by apply: lt_le_trans half; rewrite invr_gt0 ltr0n.
have [T_out best_out] := (proj1 top, proj1 best_top).
have loss_by : loss = c * (norm_mass best - norm_mass T).
  by rewrite /loss !theta_hat_of_union ?disjoint_outside //; rewrite /c; ring.
have gap_by : gap = \sum_(i in T) n i - \sum_(i in best) n i.
  rewrite /gap [X in _ = X - _](big_setID best) [X in _ = _ - X](big_setID T) /= [best :&: T]setIC; ring.
split.
- rewrite loss_by mulr_ge0 // subr_ge0.
  by apply: (exchange best_top T_out).
- rewrite loss_by -mulrA ler_wpmul2l // gap_by.
  have := exchange top best_out (esym same).
  have by_sum (S : {set I}) : \sum_(i in S) (A i + eps) * n i = norm_mass S + eps * \sum_(i in S) n i.
    by rewrite /norm_mass mulr_sumr -big_split /=; apply: eq_bigr => i _; ring.
  rewrite !by_sum => le_T; rewrite -subr_ge0 in le_T.
  by rewrite -subr_ge0; apply: le_trans le_T _; rewrite le_eqVlt; apply/orP; left; apply/eqP; ring.
apply: ler_wpmul2l; first exact: mulr_ge0.
rewrite gap_by ler_subl_addr ler_addl.
by apply: sumr_ge0 => i _; exact: norm_ge0.
Qed.

(* A kept set of larger mass and norm mass, with at least half of the mass, has a smaller theta: the second part of
   ckv-theta-sweep. *)
Lemma theta_of_larger_masses (K K' : {set I}) :
  0 < mass K -> mass K <= mass K' -> norm_mass K <= norm_mass K' -> 2%:R^-1 <= mass K' -> theta K' <= theta K.
Proof.
move=> K_gt0 le_mass le_norms half; rewrite ler_add2l ler_opp2.
apply: (@le_trans _ _ (coefficient (mass K') * norm_mass K)).
  by apply: ler_wpmul2r; [exact: norm_mass_ge0 | exact: coefficient_monotone].
by apply: ler_wpmul2l => //; exact: coefficient_ge0.
Qed.
End CriticalKV.
